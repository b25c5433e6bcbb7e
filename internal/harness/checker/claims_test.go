package checker_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/schema"
)

// claimed is a run that a request claimed for ex-2 at some second.
func claimed(t *testing.T, run, request string, second int64) checker.Final {
	t.Helper()
	data := &schema.RunResumedData{Executor: "ex-2", Reason: schema.TakeoverClaim, RequestID: request, From: schema.From{Epoch: 1, Digest: schema.Hash{}.String()}}
	e, err := schema.NewControl("f", "daemon-1", run, 2, "n", data, time.Unix(second, 0))
	require.NoError(t, err)
	header, body := e.Encode()
	return checker.Final{Run: run, Log: []schema.Record{schema.NewRecord(1, header, body)}}
}

// A claim whose answer was lost is repeated with its request, and may be given another run: its own was claimable again.
func TestClaims_Repeated_MayOpenTwoRuns(t *testing.T) {
	claim := checker.Op{Actor: "ex-2", Executor: "ex-2", Kind: checker.Takeover, Detail: checker.DetailClaim, Outcome: checker.Unknown}
	at := func(second int64) int64 { return time.Unix(second, 0).UnixNano() }
	for _, answered := range []bool{false, true} {
		first, again := claim, claim
		first.ID, first.Start = 1, at(10)
		again.ID, again.Start = 2, at(30)
		if answered {
			again.Outcome, again.Run, again.Request = checker.OK, "b", "c1"
		}
		h := &checker.History{Ops: []checker.Op{first, again}}
		checker.AttributeClaims(h, []checker.Final{claimed(t, "a", "c1", 20), claimed(t, "b", "c1", 40)})
		for i, run := range []string{"a", "b"} {
			require.Equal(t, run, h.Ops[i].Run)
			require.Equal(t, "c1", h.Ops[i].Request)
		}
	}
}

// One that was answered with a run that an earlier try had opened began with that.
func TestClaims_Repeat_BeganWithFirst(t *testing.T) {
	claim := checker.Op{Actor: "ex-2", Executor: "ex-2", Kind: checker.Takeover, Detail: checker.DetailClaim, Outcome: checker.Unknown}
	first, again := claim, claim
	first.ID, first.Start = 1, time.Unix(10, 0).UnixNano()
	again.ID, again.Start = 2, time.Unix(30, 0).UnixNano()
	again.Outcome, again.Run, again.Request = checker.OK, "a", "c1"
	h := &checker.History{Ops: []checker.Op{first, again}}
	checker.AttributeClaims(h, []checker.Final{claimed(t, "a", "c1", 20)})
	require.Equal(t, first.Start, h.Ops[1].Start)
	require.Empty(t, h.Ops[0].Run)
}
