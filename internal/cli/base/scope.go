package base

import (
	"maps"

	"github.com/waymarkio/waymark/schema"
)

// ScopeFlags select runs: those that match every flag.
type ScopeFlags struct {
	Agent  string            `placeholder:"NAME" help:"Only runs of this agent."`
	Tier   string            `placeholder:"NAME" help:"Only runs of this model tier."`
	Tenant string            `placeholder:"NAME" help:"Only runs of this tenant: short for --label tenant=NAME."`
	Label  map[string]string `placeholder:"KEY=VALUE" help:"Only runs with this label; may be repeated."`
}

// Any reports whether a flag is given.
func (f *ScopeFlags) Any() bool {
	return f.Agent != "" || f.Tier != "" || f.Tenant != "" || len(f.Label) > 0
}

// Scope is that of the flags.
func (f *ScopeFlags) Scope() schema.Scope {
	labels := maps.Clone(f.Label)
	if f.Tenant != "" {
		labels = map[string]string{schema.TenantLabel: f.Tenant}
		maps.Copy(labels, f.Label)
	}
	return schema.Scope{Agent: f.Agent, ModelTier: f.Tier, Labels: labels}
}
