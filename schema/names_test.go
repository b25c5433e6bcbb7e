package schema_test

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestNames_Grammar_Checked(t *testing.T) {
	for _, good := range []string{"a", "0", "A-b_9", strings.Repeat("x", 64)} {
		require.NoError(t, schema.CheckName("run id", good))
	}
	for _, bad := range []string{
		"", "-a", "_a", "_barrier", "a.b", "a*", ">", "a b", "a\r\n", "a\x00", "a\u202e", "..", "a/b", "é", strings.Repeat("x", 65),
		strings.Repeat("x", 300), "a%", "a\\b",
	} {
		err := schema.CheckName("run id", bad)
		var name *schema.NameError
		require.ErrorAs(t, err, &name, "%q", bad)
		require.Contains(t, err.Error(), "run id")
		require.NotContains(t, err.Error(), "\n", "a name is quoted, so that it cannot forge a line of a log")
		require.Less(t, len(err.Error()), 300)
	}
}

func TestNames_SubjectsAndBuckets_Derived(t *testing.T) {
	n := schema.NamesOf("f", 3)
	require.Equal(t, "WAYMARK_EVENTS_f_3", n.EventStream())
	require.Equal(t, "waymark.events.f.3.*", n.EventSubjects())
	require.Equal(t, "WAYMARK_CHECKPOINTS_f_3", n.CheckpointBucket())
	require.Equal(t, "WAYMARK_SEGMENTS_f_3", n.SegmentBucket())
	require.Equal(t, "waymark.checkpoints.f.3.r1", n.CheckpointSubject("r1"))
	require.Equal(t, "r1.7", schema.SegmentKey("r1", 7))
	require.Equal(t, "WAYMARK_BLOBS_f", schema.BlobBucket("f"))
	require.Equal(t, "WAYMARK_DEADLETTERS_f", schema.DeadLetterStream("f"))
	require.Equal(t, "waymark.deadletters.f.>", schema.DeadLetterSubjects("f"))
	require.Equal(t, "waymark.deadletters.f.gap.r1", schema.DeadLetterSubject("f", schema.ReasonGap, "r1"))
	require.Equal(t, "waymark.deadletters.f.gap._", schema.DeadLetterSubject("f", schema.ReasonGap, "a.b"))
	require.Equal(t, "waymark.list.f", schema.ServiceSubject(schema.VerbList, "f", ""))
	require.Equal(t, "waymark.observed.f.tool.called.r1", schema.ObservedSubject("f", schema.ToolCalled, "r1"))
	require.Equal(t, "r1", n.RunOfSubject(n.EventSubject("r1")))
	for _, other := range []string{"waymark.events.f.3.a.b", "waymark.events.f.33.r1", "waymark.events.f.3.*", "waymark.events.f.3.", "x"} {
		require.Empty(t, n.RunOfSubject(other), other)
	}
}

func TestShard_Name_ComputedByAnyClient(t *testing.T) {
	require.Zero(t, schema.ShardOf("r1", 0))
	require.Zero(t, schema.ShardOf("r1", 1))
	// FNV-1a-32 of "a" is 0xe40c292c, of "foobar" 0xbf9cf968.
	require.Equal(t, 0xe40c292c%7, schema.ShardOf("a", 7))
	require.Equal(t, 0xbf9cf968%16, schema.ShardOf("foobar", 16))
}

func TestNames_SourcesAndBlobs_RoundTrip(t *testing.T) {
	fleet, executor, ok := schema.ParseSource(schema.Source("f", "ex-1"))
	require.True(t, ok)
	require.Equal(t, "f/ex-1", fleet+"/"+executor)
	for _, bad := range []string{"", "/waymark/f", "/waymark//e", "/waymark/f/e/x", "waymark/f/e", "/waymark/f/.."} {
		_, _, ok := schema.ParseSource(bad)
		require.False(t, ok, bad)
	}
	sum := strings.Repeat("ab", 32)
	run, hex, err := schema.ParseDataRef(schema.DataRef("r1", sum))
	require.NoError(t, err)
	require.Equal(t, "r1"+sum, run+hex)
	for _, bad := range []string{
		"", "http://127.0.0.1/x", "file:///etc/passwd", "waymark-blob:r1", "waymark-blob:r1.sha256-" + strings.ToUpper(sum),
		"waymark-blob:../r1.sha256-" + sum, "waymark-blob:r1.sha256-" + sum + "0", "waymark-blob:.sha256-" + sum,
	} {
		_, _, err := schema.ParseDataRef(bad)
		require.Error(t, err, bad)
	}
}

func TestCallKey_Calls_HaveOne(t *testing.T) {
	require.Equal(t, "r1.2.c1.3", schema.CallKey{Turn: 2, ToolCallID: "c1", Occurrence: 3}.IdempotencyKey("r1"))
}

func TestPosition_Text_NamesRecord(t *testing.T) {
	r := newTestRun(t)
	r.start()
	require.Equal(t, r.head.Position, schema.PositionOf(&r.log[0]))
	r.record(nil, []byte("no event"))
	p := schema.PositionOf(&r.log[1])
	require.Equal(t, r.head.Position, p)
	require.Regexp(t, `^sha256-[0-9a-f]{32}$`, p.ID)
	again := r.log[1]
	again.Stream = 99
	require.Equal(t, p.ID, schema.PositionOf(&again).ID, "the id does not depend on the place")
}

func TestErrorCode_Each_HasStatus(t *testing.T) {
	source, err := os.ReadFile("serviceerror.go")
	require.NoError(t, err)
	codes := regexp.MustCompile(`Code = "([a-z_]+)"`).FindAllSubmatch(source, -1)
	require.Greater(t, len(codes), 10)
	for _, m := range codes {
		code := schema.Code(m[1])
		status := code.HTTPStatus()
		if status == http.StatusInternalServerError {
			require.Contains(t, []schema.Code{schema.CodeInternal, schema.CodeDamaged}, code)
		}
	}
	err = &schema.ServiceError{Code: schema.CodeStorageFull, Message: "the fleet is full", Hint: "raise the quota"}
	require.EqualError(t, err, "the fleet is full (storage_full): raise the quota")
}

func TestBlobRef_LargeFields_Referenced(t *testing.T) {
	ref := func(path string) schema.Ref {
		return schema.Ref{Path: path, DataRef: schema.DataRef("r1", strings.Repeat("0", 64)), Size: 1 << 20}
	}
	r := newTestRun(t)
	r.start()
	many := make([]schema.Message, 12)
	for i := range many {
		many[i] = userMessage("m")
	}
	r.write(&schema.TurnStartedData{Turn: 1, Messages: many, Refs: []schema.Ref{ref("/messages/1/parts/0/content"), ref("/messages/11/parts/0/content")}}, 1)
	require.Equal(t, []schema.Ref{ref("/parts/0/content")}, r.state.Messages[1].Refs, "message 1 is not message 11")
	require.Empty(t, r.state.Messages[2].Refs)
	require.Len(t, r.state.Messages[11].Refs, 1)
	r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "ls", Refs: []schema.Ref{ref("/arguments")}}, 1)
	r.write(&schema.ToolReturnedData{ToolCallID: "c1", Refs: []schema.Ref{ref("/result")}}, 1)
	require.Equal(t, []schema.Ref{ref("/arguments"), ref("/result")}, r.state.Calls[0].Refs)
	require.True(t, r.head.TurnOpen)
	r.write(&schema.TurnEndedData{Turn: 1, Messages: many[:1], Refs: []schema.Ref{ref("/source"), ref("/messages/0/parts/0/content")}}, 1)
	require.Equal(t, []schema.Ref{ref("/source")}, r.state.Turns[0].Ended.Refs)
	require.Len(t, r.state.Messages[12].Refs, 1)
	require.False(t, r.head.TurnOpen)
	require.Empty(t, r.head.OpenCalls)
	require.True(t, r.head.Complete())
}
