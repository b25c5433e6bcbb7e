package schema_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// profiled follows events, a second apart each.
type profiled struct {
	schema.Profile
	head schema.Head
}

func (p *profiled) take(data schema.Data, change func(*schema.Verdict)) {
	p.head.Records++
	at := time.Unix(1_700_000_000+p.head.Records, 0)
	v := schema.Verdict{Kind: schema.Applied, Event: &schema.Event{Time: schema.FormatTime(at)}, Data: data}
	if change != nil {
		change(&v)
	}
	p.Apply(&p.head, &v)
}

func TestProfile_WorkAndWaits_AreCountedWhereTheyEnd(t *testing.T) {
	p := &profiled{head: schema.Head{Epoch: 1}}
	key := schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}
	of := func(v *schema.Verdict) { v.Call = key }
	p.take(&schema.RunStartedData{Model: "m", Provider: "p"}, nil)
	p.take(&schema.RunInterruptedData{}, nil) // handed in
	p.head.Epoch = 2
	p.take(&schema.RunResumedData{}, nil) // and claimed
	p.take(&schema.TurnStartedData{Turn: 1}, nil)
	p.take(&schema.TurnAnsweredData{Turn: 1, Calls: []schema.RequestedCall{{ToolCallID: "a"}}}, func(v *schema.Verdict) { v.Calls = []schema.CallKey{key} })
	p.take(&schema.ToolCalledData{ToolCallID: "a"}, func(v *schema.Verdict) { v.Call, v.Begun = key, true })
	p.take(&schema.RunWaitingData{InterruptID: "i"}, nil)
	p.take(&schema.RunInputData{InterruptID: "i"}, nil)
	p.take(&schema.ToolReturnedData{ToolCallID: "a"}, of)
	p.take(&schema.ToolFailedData{ToolCallID: "b", DurationMS: 250}, func(v *schema.Verdict) { v.Call.ToolCallID = "b" })
	p.take(nil, func(v *schema.Verdict) { v.Kind = schema.Rejected })
	p.head.Epoch = 3
	p.take(&schema.RunResumedData{}, nil)
	p.take(&schema.RunEndedData{Status: string(schema.StatusFailed)}, nil)
	got := p.Total()
	got.Begun, got.Ended = "", ""
	require.Equal(t, schema.ProfileBucket{
		From: 1, Through: 13, ModelMS: 1000, CallMS: 3000 + 250, WaitedMS: 1000, Calls: 1, Failures: 2, Waits: 1, Takeovers: 1,
	}, got)
	require.Equal(t, "m", p.Model)
	require.Equal(t, "p", p.Provider)
	require.EqualValues(t, 3000+250, p.Buckets(13)[8].CallMS+p.Buckets(13)[9].CallMS)
}

func TestProfile_ManyRecords_BucketsBecomeWiderAndLoseNothing(t *testing.T) {
	p := &profiled{head: schema.Head{Epoch: 1}}
	for n := int64(1); n <= 5000; n++ {
		p.take(&schema.ToolFailedData{ToolCallID: "a", DurationMS: 2}, nil)
		if n%1000 != 1 {
			continue
		}
		copied := p.Clone()
		list := copied.Buckets(schema.MaxBuckets)
		require.LessOrEqual(t, len(list), schema.MaxBuckets)
		next := int64(1)
		for i := range list {
			require.Equal(t, next, list[i].From)
			require.Equal(t, list[i].Through-list[i].From+1, list[i].Failures)
			next = list[i].Through + 1
		}
		require.Equal(t, n+1, next)
		require.Equal(t, 2*n, copied.Total().CallMS)
		copied.Apply(&schema.Head{Records: n + 1}, &schema.Verdict{Kind: schema.Rejected})
		require.Equal(t, n, p.Total().Through, "a copy goes on by itself")
	}
	require.Greater(t, len(p.Buckets(schema.MaxBuckets)), schema.MaxBuckets/2-1)
	require.Empty(t, new(schema.Profile).Buckets(schema.MaxBuckets))
	require.Zero(t, new(schema.Profile).Total())
}

func TestProfile_RewindOverWaits_CountsThoseThatAreOpen(t *testing.T) {
	p := &profiled{head: schema.Head{Epoch: 1}}
	p.take(&schema.RunWaitingData{InterruptID: "answered"}, nil)
	p.take(&schema.RunInputData{InterruptID: "answered"}, nil)
	p.take(&schema.RunWaitingData{InterruptID: "behind"}, nil)
	require.EqualValues(t, 1000, p.Total().WaitedMS)
	// The run goes on where the first wait was open and the second one was not.
	p.head.Epoch, p.head.Interrupts = 2, []schema.OpenInterrupt{{InterruptID: "answered", Since: schema.FormatTime(time.Unix(1_700_000_001, 0))}}
	p.take(&schema.RunResumedData{Reason: schema.TakeoverRewind}, nil)
	p.take(&schema.RunInputData{InterruptID: "answered"}, nil)
	require.EqualValues(t, 1000+4000, p.Total().WaitedMS)
	p.head.Interrupts = nil
	p.take(&schema.RunEndedData{Status: string(schema.StatusCompleted)}, nil)
	require.EqualValues(t, 1000+4000, p.Total().WaitedMS, "what was left behind waits no more")
}

func TestProfile_HugeDurations_StayPositive(t *testing.T) {
	p := &profiled{head: schema.Head{Epoch: 1}}
	for range 3 {
		p.take(&schema.ToolReturnedData{ToolCallID: "a", DurationMS: 1<<63 - 1}, nil)
	}
	require.EqualValues(t, 1<<63-1, p.Total().CallMS)
}
