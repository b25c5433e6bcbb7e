package schema

import (
	"fmt"
	"maps"
	"strings"
)

// MaxLimits bounds the limits of a fleet.
const MaxLimits = 64

// Limit bounds what the runs of a scope use together.
type Limit struct {
	Scope
	// Each is the key of a label, each value of which has the limit for itself. A run without the label has no limit.
	Each string `json:"each,omitzero" check:"max=64"`
	// AtWork is the most runs that executors have at a time, as far as they claim them; 0 is no bound.
	AtWork int `json:"at_work,omitzero" check:"min=0,max=1000"`
	// DayTokens is the most tokens, of requests and answers, that runs use in a day; 0 is no bound. A day begins at 00:00
	// UTC by the server's clock.
	DayTokens int64 `json:"day_tokens,omitzero" check:"min=0"`
	// By and Claimed are as in run.input: the operator who set it.
	By      string `json:"by" check:"required"`
	Claimed string `json:"claimed,omitzero"`
	// Since when, RFC 3339, by the daemon's clock.
	Since string `json:"since" check:"required,time"`
}

// Of is the scope whose runs share the limit with a run; false if the limit does not select the run.
func (l *Limit) Of(run *Live) (Scope, bool) {
	if !l.Selects(run) {
		return Scope{}, false
	}
	if l.Each == "" {
		return l.Scope, true
	}
	value, ok := run.Labels[l.Each]
	if !ok {
		return Scope{}, false
	}
	share := l.Scope
	if share.Labels = maps.Clone(l.Labels); share.Labels == nil {
		share.Labels = make(map[string]string, 1)
	}
	share.Labels[l.Each] = value
	return share, true
}

// FullText says for which limits' places a run waits; empty for none.
func FullText(full []Limit) string {
	texts := make([]string, len(full))
	for i := range full {
		texts[i] = fmt.Sprintf("limit %s, %d at work", full[i].Flags(), full[i].AtWork)
	}
	if len(texts) == 0 {
		return ""
	}
	return "waits for a place: " + strings.Join(texts, "; ")
}

// HasShare reports whether a scope is that of runs that share the limit.
func (l *Limit) HasShare(s *Scope) bool {
	share, ok := l.Of(&Live{Run: s.Run, Agent: s.Agent, ModelTier: s.ModelTier, Labels: s.Labels})
	return ok && share.Same(s)
}

// Flags are the flags of a command that select the limit.
func (l *Limit) Flags() string {
	if l.Each == "" {
		return l.Scope.Flags()
	}
	return strings.TrimPrefix(strings.TrimPrefix(l.Scope.Flags(), "--all")+Flag("each", l.Each), " ")
}

// Same reports whether two limits have the same scope.
func (l *Limit) Same(o *Limit) bool { return l.Each == o.Each && l.Scope.Same(&o.Scope) }

// LimitRequest sets the limit of a scope, in place of an earlier one of exactly that scope, or ends it. A bound that it
// lacks stays.
type LimitRequest struct {
	Scope
	// Each, AtWork and DayTokens are those of [Limit]. At least one bound is required, unless End.
	Each      string `json:"each,omitzero" check:"max=64"`
	AtWork    int    `json:"at_work,omitzero" check:"min=0,max=1000"`
	DayTokens int64  `json:"day_tokens,omitzero" check:"min=0"`
	// End ends the limit.
	End bool `json:"end,omitzero"`
	// By is the sender's name, a claim, as in [InputRequest].
	By string `json:"by"`
}

// LimitReply says what holds from now on.
type LimitReply struct {
	// Limit that is in effect, or that was ended.
	Limit Limit `json:"limit"`
	// Already: an equal limit was in effect, or there was none to end.
	Already bool `json:"already,omitzero"`
}

// LimitState is a limit, and what is used of it.
type LimitState struct {
	Limit
	// Shares are what the limit is divided into: one without Each, else those of the label's values that use it, the
	// fullest first, at most [MaxLimitShares].
	Shares []LimitShare `json:"shares,omitzero"`
}

// MaxLimitShares bounds [LimitState.Shares].
const MaxLimitShares = 64

// LimitShare is what the runs of a limit use, or those with one value of its label.
type LimitShare struct {
	// Value of the label; absent without Each.
	Value string `json:"value,omitzero"`
	// AtWork counts the runs that executors have, and Waiting those that wait for a place.
	AtWork  int `json:"at_work"`
	Waiting int `json:"waiting,omitzero"`
	// DayTokens are the tokens of the current day, counted since the limit was set.
	DayTokens int64 `json:"day_tokens,omitzero"`
}
