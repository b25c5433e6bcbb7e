package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// MaxPauses bounds the pauses of a fleet that people asked for, and MaxBudgetPauses those of budgets that are used up.
const (
	MaxPauses       = 64
	MaxBudgetPauses = 256
)

// Scope selects runs: those that match every field that is set. The zero Scope selects all runs.
type Scope struct {
	Run       string `json:"run,omitzero" check:"name"`
	Agent     string `json:"agent,omitzero" check:"name"`
	ModelTier string `json:"model_tier,omitzero" check:"max=256,text"`
	// Labels must all be there with these values. An encrypted label matches no value.
	Labels map[string]string `json:"labels,omitzero" check:"max=32" key:"required,max=64" each:"max=256"`
}

// Selects reports whether the scope selects a run.
func (s *Scope) Selects(l *Live) bool {
	if s.Run != "" && s.Run != l.Run || s.Agent != "" && s.Agent != l.Agent || s.ModelTier != "" && s.ModelTier != l.ModelTier {
		return false
	}
	for key, value := range s.Labels {
		if got, ok := l.Labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// Flags are the flags of a command that select the scope.
func (s *Scope) Flags() string {
	var text strings.Builder
	text.WriteString(s.Run)
	if s.Agent != "" {
		text.WriteString(Flag("agent", s.Agent))
	}
	if s.ModelTier != "" {
		text.WriteString(Flag("tier", s.ModelTier))
	}
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		text.WriteString(Flag("label", key+"="+s.Labels[key]))
	}
	if text.Len() == 0 {
		return "--all"
	}
	return strings.TrimPrefix(text.String(), " ")
}

// Same reports whether two scopes are equal.
func (s *Scope) Same(o *Scope) bool {
	return s.Run == o.Run && s.Agent == o.Agent && s.ModelTier == o.ModelTier && maps.Equal(s.Labels, o.Labels)
}

// Pause is a pause in a fleet's settings. While any pause selects a run, no executor is given the run, and one that has
// it begins no turn and no call.
type Pause struct {
	Scope
	Reason string `json:"reason" check:"required,max=256,text"`
	// By and Claimed are as in run.input: the operator who asked for it.
	By      string `json:"by" check:"required"`
	Claimed string `json:"claimed,omitzero"`
	// Since when, RFC 3339, by the daemon's clock.
	Since string `json:"since" check:"required,time"`
	// Until when, RFC 3339, by the server's clock; absent for a pause that only a request ends. The pause is over when the
	// daemon has removed it, moments later.
	Until string `json:"until,omitzero" check:"time"`
	// Limit are the flags of the limit whose budget, DayTokens, is used up; both are absent in a pause that a person asked for.
	Limit     string `json:"limit,omitzero"`
	DayTokens int64  `json:"day_tokens,omitzero"`
}

// EndsWith is the command that ends the pause. N is a larger budget.
func (p *Pause) EndsWith() string {
	if p.Limit != "" {
		return "limit " + p.Limit + " --day-tokens N"
	}
	return "unpause " + p.Flags()
}

// When says since when and until when the pause holds.
func (p *Pause) When() string {
	if p.Until == "" {
		return "since " + p.Since
	}
	return "since " + p.Since + " until " + p.Until
}

// Over reports whether the pause is over at a time of the server's clock.
func (p *Pause) Over(served time.Time) bool {
	return p.Until != "" && !ParseTime(p.Until).After(served)
}

// PausesOf are those of the pauses that select a run.
func PausesOf(pauses []Pause, l *Live) (list []Pause) {
	for i := range pauses {
		if pauses[i].Selects(l) {
			list = append(list, pauses[i])
		}
	}
	return list
}

// PausedBy are those of the pauses that select the run.
func (h *Head) PausedBy(pauses []Pause) []Pause { return PausesOf(pauses, h.Scoped()) }

// Scoped is the run with what a [Scope] selects by.
func (h *Head) Scoped() *Live {
	return &Live{Run: h.Run, Agent: h.Agent, ModelTier: h.ModelTier, Labels: h.Labels}
}

// PauseRequest pauses the runs of a scope, or ends the pause of exactly that scope.
type PauseRequest struct {
	Scope
	// End ends the pause. A run that another pause selects stays paused.
	End bool `json:"end,omitzero"`
	// Reason is for people, and required unless End. It is stored as clear text.
	Reason string `json:"reason,omitzero" check:"max=256,text"`
	// Until is that of [Pause]: a time to come.
	Until string `json:"until,omitzero" check:"time"`
	// By is the sender's name, a claim, as in [InputRequest].
	By string `json:"by"`
}

// PauseReply says what holds from now on.
type PauseReply struct {
	// Pause that is in effect, or that was ended.
	Pause Pause `json:"pause"`
	// Already: an earlier request paused the scope, and its pause stays as it is; or the scope is not paused any more.
	Already bool `json:"already,omitzero"`
	// Runs that have not ended and that the pause selects. Going are those of them that an executor may still go on with:
	// the pause is not in their log yet, and the daemon keeps trying.
	Runs  int `json:"runs"`
	Going int `json:"going,omitzero"`
	// Unproven are the shards in which other runs may go on, too: not all events from before the pause are folded. Runs
	// lacks their runs. The same request again asks them again.
	Unproven int `json:"unproven,omitzero"`
}

// Doubt says what may still begin; empty for nothing.
func (r *PauseReply) Doubt() string {
	var list []string
	if r.Going > 0 {
		list = append(list, fmt.Sprintf("%d of these runs", r.Going))
	}
	if r.Unproven > 0 {
		list = append(list, fmt.Sprintf("other runs in %d of the shards", r.Unproven))
	}
	if len(list) == 0 {
		return ""
	}
	return "Not proven: " + strings.Join(list, ", and ") + " may begin something until the daemon has stopped them. Pause the same again to see whether it has."
}
