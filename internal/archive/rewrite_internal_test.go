package archive

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// FuzzRename renames a run that begins as runs do and goes on with anything. The fold says of it what it said before, or the run is
// refused; the content stays.
func FuzzRename(f *testing.F) {
	for _, data := range []schema.Data{
		&schema.RunResumedData{Executor: "exec-2", Reason: "claim", RequestID: "q", From: schema.From{Epoch: 1, Sequence: 1, Digest: "d"}},
		&schema.RunResumedData{
			Executor: "exec-2", Reason: schema.TakeoverRewind, RequestID: "q", From: schema.From{Epoch: 1, Sequence: 1, Digest: "d"},
			To: &schema.Base{BaseRef: schema.BaseRef{Run: "r1", Records: 1}},
		},
		&schema.HandoffAcceptedData{HandoffID: "h", OfferHash: "x"},
		&schema.PhaseCompletedData{Phase: "p", Refs: []schema.Ref{{Path: "/output", DataRef: schema.DataRef("r1", schema.Hash{1}.String())}}},
	} {
		body, err := schema.MarshalData(data)
		if err != nil {
			body = []byte(`{}`)
		}
		f.Add("io.waymark."+data.EventName()+".v1", "r1", "r1.2.c.n", uint32(2), uint64(0), body)
	}
	f.Fuzz(func(t *testing.T, kind, subject, id string, epoch uint32, sequence uint64, body []byte) {
		w := schema.Writer{Fleet: "alpha", Run: "r1", Executor: "exec-1", Epoch: 1}
		start, err := w.Event(&schema.RunStartedData{Agent: "coder", Executor: "exec-1"}, 0, time.Unix(1_700_000_000, 0), 0)
		require.NoError(t, err)
		any := &schema.Event{
			ID: id, Source: schema.Source("alpha", "exec-1"), Type: kind, Subject: subject, Epoch: schema.Epoch(epoch), Sequence: schema.Sequence(sequence), Data: body,
		}
		before, after := newTally(schema.NoKeys, "r1"), newTally(schema.NoKeys, "r2")
		r := newRenamed(rekeyed{from: schema.NoKeys, to: schema.NoKeys}, "alpha", "omega", "r1", "r2", nil, []int64{1})
		for i, e := range []*schema.Event{start, any} {
			header, body := e.Encode()
			rec := schema.NewRecord(schema.StreamSequence(i+1), header, body)
			is, err := r.next(&rec)
			if err != nil {
				return
			}
			before.add(&rec)
			after.add(&is)
		}
		require.Equal(t, before.records, after.records)
		require.Equal(t, before.head.Counts, after.head.Counts)
	})
}
