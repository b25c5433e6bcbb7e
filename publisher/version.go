package publisher

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/waymarkio/waymark/schema"
)

// builtFrom is the version of the main module and its revision, as the Go toolchain wrote them into the program; empty if
// it wrote none.
var builtFrom = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var parts []string
	if v := info.Main.Version; v != "" && v != "(devel)" {
		parts = append(parts, v)
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			parts = append(parts, s.Value[:min(len(s.Value), 12)])
		case s.Key == "vcs.modified" && s.Value == "true":
			parts = append(parts, "modified")
		}
	}
	return clipped(strings.Join(parts, " "), schema.MaxBuild-3)
})

// version describes the loop for comparison with other builds of its agent.
func (l *Loop) version() schema.Version {
	v := schema.Version{Tools: make([]schema.ToolVersion, 0, len(l.Tools))}
	if l.System != "" {
		v.Prompt = digest([]byte(l.System))
	}
	for i := range l.Tools {
		v.Tools = append(v.Tools, l.Tools[i].version())
	}
	slices.SortFunc(v.Tools, func(a, b schema.ToolVersion) int { return strings.Compare(a.Name, b.Name) })
	if all, _ := json.Marshal(v.Tools); len(v.Tools) > schema.MaxVersionTools || len(all) > schema.MaxVersionBytes { //nolint:errchkjson // texts only
		v.Tools, v.ToolsDigest = nil, digest(all)
	}
	return v
}

func (t *Tool) version() schema.ToolVersion {
	v := schema.ToolVersion{Name: t.Name, Replay: t.Replay, Version: t.Version}
	if len(t.Parameters) == 0 {
		return v
	}
	v.Schema = digest(t.Parameters)
	var parameters jsonschema.Schema
	if parameters.UnmarshalJSON(t.Parameters) != nil || len(parameters.Properties) > schema.MaxVersionArguments {
		return v // prepare has refused a text that is no schema
	}
	for name := range parameters.Properties {
		if name == "" || recordable(name) != name {
			continue // the digest stands for it
		}
		if slices.Contains(parameters.Required, name) {
			v.Required = append(v.Required, name)
		} else {
			v.Optional = append(v.Optional, name)
		}
	}
	slices.Sort(v.Required)
	slices.Sort(v.Optional)
	return v
}

// mayDrift asks a person before the run goes on under another version of its agent, if a rule says so.
func (r *Run) mayDrift(ctx context.Context) error {
	var id, text, build string
	var asks bool
	r.ledger.do(func(l *ledger) {
		is := l.version(l.fold.head.Agent)
		var changes []string
		var since int32
		if changes, since, asks = l.fold.state.Drift(is); !asks {
			return
		}
		was, _ := l.fold.state.Version()
		both, _ := json.Marshal([]*schema.Version{was, is}) //nolint:errchkjson // texts only
		id, build = l.fold.head.DerivedID(schema.DriftApproval, digest(both)), is.Build
		text = clipped((&schema.PlanVersion{Build: build, Since: since}).Text()+": "+strings.Join(changes, "; ")+".", maxShownProblem)
	})
	if !asks {
		return nil
	}
	input, err := r.ask(ctx, schema.RunWaitingData{InterruptID: id, Reason: schema.WaitHumanInput, Message: text, ResponseSchema: []byte(approvalSchema)}, true)
	if err != nil && !errors.Is(err, ErrInputCancelled) && !errors.Is(err, ErrInputExpired) {
		return fmt.Errorf("approval of build %s for run %s: %w", build, r.id, err)
	}
	if decision, reason := approvalOf(&input); decision != schema.DecisionAllow {
		return fmt.Errorf("run %s: %w: build %s was not allowed by %s: %s; serve the build before it, deploy another, or cancel the run", r.id, ErrDiverged,
			build, cmp.Or(input.Claimed, input.By, "an unnamed person"), cmp.Or(reason, "no reason was given"))
	}
	return nil
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// agentVersions are the versions of the agents whose work this handle's executors do.
type agentVersions struct {
	mu    sync.Mutex
	loops map[string]schema.Version
	build string
}

// add remembers the loops of an executor. plain: their content may be said.
func (a *agentVersions) add(loops map[string]Loop, plain bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for agent := range loops {
		loop, v := loops[agent], schema.Version{}
		if plain {
			v = loop.version()
		}
		v.Build, v.Rule = a.build, loop.Drift
		a.loops[agent] = v
	}
}

// of returns the version of an agent; nil if nothing is known of it.
func (a *agentVersions) of(agent string) *schema.Version {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, ok := a.loops[agent]
	if !ok && a.build == "" {
		return nil
	}
	v.Build = a.build
	return &v
}

// all returns the versions of agents, as many as fit in a heartbeat.
func (a *agentVersions) all(agents []string) map[string]schema.Version {
	list, room := make(map[string]schema.Version, len(agents)), schema.MaxVersionsBytes
	for _, agent := range agents {
		v := a.of(agent)
		if v == nil || agent == schema.AnyAgent {
			continue
		}
		text, _ := json.Marshal(v) //nolint:errchkjson // texts only
		if size := len(text) + len(agent) + 4; size <= room {
			room -= size
			list[agent] = *v
		}
	}
	return list
}
