package schema

import "time"

// Bounds of a fleet's schedules: its settings are one message, which each daemon reads often.
const (
	MaxSchedules = 64
	// MaxScheduleBytes bounds a schedule as JSON.
	MaxScheduleBytes = 8 << 10
	// MaxMissed bounds the missed firings of a schedule that are submitted later.
	MaxMissed = 1000
)

// Policies for firings that were missed because no daemon ran, or none could submit the run.
const (
	// MissedOne submits the latest of them. It is the default.
	MissedOne = "one"
	// MissedAll submits each of them, the oldest first, but only the latest [MaxMissed].
	MissedAll = "all"
	// MissedNone submits only one that was due within the last minute.
	MissedNone = "none"
)

// ScheduleSpec says when a schedule fires, and which run it submits. It is stored as clear text.
type ScheduleSpec struct {
	// Cron has five fields: minute, hour, day of the month, month, day of the week.
	Cron string `json:"cron,omitzero" check:"max=256,text"`
	// TimeZone is a name of the IANA database; empty means UTC.
	TimeZone string `json:"time_zone,omitzero" check:"max=64,text"`
	// Missed is the policy for missed firings; empty means [MissedOne].
	Missed string `json:"missed,omitzero" check:"oneof=one|all|none"`
	// The other fields are those of run.started.
	Agent          string            `json:"agent,omitzero" check:"name"`
	Task           string            `json:"task,omitzero" check:"max=4096"`
	ThreadID       string            `json:"thread_id,omitzero" check:"max=256,text"`
	Labels         map[string]string `json:"labels,omitzero" check:"max=32" key:"required,max=64" each:"max=256"`
	ModelTier      string            `json:"model_tier,omitzero" check:"max=256,text"`
	Priority       int               `json:"priority,omitzero" check:"min=0,max=9"`
	MaxTurns       int32             `json:"max_turns,omitzero" check:"min=0"`
	MaxTokens      int64             `json:"max_tokens,omitzero" check:"min=0"`
	CompletionTool string            `json:"completion_tool,omitzero" check:"max=256,text"`
}

// Schedule submits a run at each of its due times. The id of the run follows from the due time, so that the runs are the
// record of what has fired.
type Schedule struct {
	Name string `json:"name" check:"required,name,max=47"`
	ScheduleSpec
	// By and Claimed are as in run.input: the sender who set it.
	By      string `json:"by" check:"required"`
	Claimed string `json:"claimed,omitzero"`
	// Since when, RFC 3339, by the server's clock. Due times up to then do not fire.
	Since string `json:"since" check:"required,time"`
}

// RunID is the id of the run that is due at a time.
func (s *Schedule) RunID(due time.Time) string { return s.Name + due.UTC().Format("-20060102T1504Z") }

// RunIDNow is the id of a run that a person submits at a time. It is none of a due time.
func (s *Schedule) RunIDNow(now time.Time) string {
	return s.Name + now.UTC().Format("-20060102T150405Z")
}

// ScheduleRequest sets the schedule of a name, in place of an earlier one, or removes it.
type ScheduleRequest struct {
	Name string `json:"name" check:"required,name,max=47"`
	ScheduleSpec
	// End removes the schedule. Its runs stay.
	End bool `json:"end,omitzero"`
	// By is the sender's name, a claim, as in [InputRequest].
	By string `json:"by"`
}

// ScheduleReply says what holds from now on.
type ScheduleReply struct {
	// Schedule that is in effect, or that was removed.
	Schedule Schedule `json:"schedule"`
	// Already: an equal schedule was in effect, or there was none to remove.
	Already bool `json:"already,omitzero"`
	// Next due time, RFC 3339; absent for a schedule that was removed.
	Next string `json:"next,omitzero"`
}

// ScheduleState is a schedule, and what the answering replica knows of its firings. All replicas submit its runs.
type ScheduleState struct {
	Schedule
	// Next due time, RFC 3339; absent until the replica has the server's time.
	Next string `json:"next,omitzero"`
	// Last is the latest due time that fired, RFC 3339, and LastRun its run; absent if there is none.
	Last    string `json:"last,omitzero"`
	LastRun string `json:"last_run,omitzero"`
	// FailingSince is when the replica first could not submit the run that is due, and Why the latest reason.
	FailingSince string `json:"failing_since,omitzero"`
	Why          string `json:"why,omitzero"`
	// LeftOut: missed firings up to this time, RFC 3339, were left out by the policy.
	LeftOut string `json:"left_out,omitzero"`
}
