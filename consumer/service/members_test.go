package service_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// A member with a mistake in its name would be dropped, and the rest be done.
func TestRequest_MemberThatItDoesNotHave_IsRefusedAndNothingIsDone(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	before := x.Last
	for _, c := range []struct{ verb, body, path, has string }{
		{schema.VerbInput, `{"interrupt_id":"q1","paylod":"red","by":"ann"}`, "/paylod", "payload"},
		{schema.VerbSettle, `{"turn":1,"tool_call_id":"c","how":"asserted","reslt":1,"by":"ann"}`, "/reslt", "result"},
		{schema.VerbSettle, `{"turn":1,"tool_cal":"c"}`, "/tool_cal", "tool_call_id"},
		{schema.VerbRecover, `{"executor":"e","request_id":"q","att":"record:1"}`, "/att", "at"},
		{schema.VerbRecover, `{"executor":"e","request_id":"q","expectedEpoch":1}`, "/expectedEpoch", "expected_epoch"},
		{schema.VerbSignal, `{"name":"s","paylod":1,"by":"ann"}`, "/paylod", "payload"},
		{schema.VerbGet, `{"veiw":"head"}`, "/veiw", "view"},
		{schema.VerbList, `{"statuss":["running"]}`, "/statuss", "status"},
		{schema.VerbClaim, `{"executor":"e","request_id":"q","agent":"coder"}`, "/agent", "agents"},
		{schema.VerbCancel, `{"by":"ann","reasn":"x"}`, "/reasn", "reason"},
		{schema.VerbHandoff, `{"handoff_id":"h","action":"close","by":"ann","child":"r"}`, "/child", "child_run"},
		{schema.VerbMark, `{"name":"n","by":"ann","mov":true}`, "/mov", "move"},
		{schema.VerbFork, `{"fork":"f","by":"ann","at":"turn:1"}`, "/at", "fork"},
		{schema.VerbErase, `{"by":"ann","chekc":true}`, "/chekc", "check"},
		{schema.VerbCleanup, `{"by":"ann","dryrun":true}`, "/dryrun", "dry_run"},
		{schema.VerbCleanup, `{"dry_run":true,"policy":{"grace":9}}`, "/policy/grace", "grace_seconds"},
		{schema.VerbFleet, `{"shard":1}`, "/shard", "none"},
		{schema.VerbHistory, `{"limit":1}`, "/limit", "none"},
	} {
		run := "run-1"
		switch c.verb {
		case schema.VerbList, schema.VerbClaim, schema.VerbCleanup, schema.VerbFleet:
			run = ""
		}
		m, err := w.client.Request(schema.ServiceSubject(c.verb, "default", run), []byte(c.body), testTimeout)
		require.NoError(t, err, c.body)
		require.NotEmpty(t, m.Header.Get(schema.HeaderErrorCode), "%s %s: %s", c.verb, c.body, m.Data)
		e := decodeAs[schema.ServiceError](t, m.Data)
		require.Equal(t, schema.CodeBadRequest, e.Code, "%s: %s", c.body, e.Message)
		require.JSONEq(t, `{"path":"`+c.path+`"}`, string(e.Details), c.body)
		require.Regexp(t, `there are: .*\b`+c.has+`\b`, e.Message, c.body)
		require.Contains(t, e.Hint, "newer version")
	}
	reply, _ := w.get("run-1", schema.ViewHead)
	require.EqualValues(t, before, reply.Head.Position.Stream, "nothing was written")
}
