package schema

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Bounds of a [Version].
const (
	MaxBuild            = 128
	MaxVersionTools     = 64
	MaxVersionArguments = 32
	// MaxVersionBytes bounds the tools of a version, encoded as JSON.
	MaxVersionBytes = 8 << 10
)

// DriftRule says under which other versions of its agent a run goes on. The recorded version has it, so a run keeps its
// rule until it goes on under another version.
type DriftRule string

// Rules for drift.
const (
	// DriftAccept: under any version.
	DriftAccept DriftRule = "accept"
	// DriftSameBuild: claims leave the run to executors of its build, until none of them is alive.
	DriftSameBuild DriftRule = "same-build"
	// DriftAsk is DriftSameBuild, and a person must allow another version with other tools or another prompt.
	DriftAsk DriftRule = "ask"
)

// Version describes the code that an executor has for an agent, so that two of them can be compared: see [Drift].
type Version struct {
	// Build is the version of the program, and its revision: v1.4.0 3f2a91bcd4e5. Empty if the program does not say.
	Build string `json:"build,omitzero" check:"max=128,text"`
	// Prompt is a digest of the system prompt (16 hex digits); empty without one.
	Prompt string `json:"prompt,omitzero" check:"max=16,text"`
	// Tools by name; absent if the agent is work of the program's own, which does not say them. An agent with more than
	// [MaxVersionTools], or with more bytes of them than [MaxVersionBytes], has a digest of them in ToolsDigest instead.
	Tools       []ToolVersion `json:"tools,omitzero" check:"max=64"`
	ToolsDigest string        `json:"tools_digest,omitzero" check:"max=16,text"`
	// Rule for other versions; empty means [DriftAccept].
	Rule DriftRule `json:"rule,omitzero" check:"oneof=accept|same-build|ask"`
}

// ToolVersion describes a tool as a model sees it, and what becomes of its calls after a crash.
type ToolVersion struct {
	Name   string `json:"name" check:"required,max=256,text"`
	Replay Replay `json:"replay,omitzero" check:"max=16,text"`
	// Version is what the tool's author set, for changes that the schema does not show.
	Version string `json:"version,omitzero" check:"max=128,text"`
	// Schema is a digest of the JSON Schema of the arguments (16 hex digits); empty without one.
	Schema string `json:"schema,omitzero" check:"max=16,text"`
	// Required and Optional are the names of the arguments, sorted. A tool with more than [MaxVersionArguments] has none
	// here.
	Required []string `json:"required,omitzero" check:"max=32" each:"max=256,text"`
	Optional []string `json:"optional,omitzero" check:"max=32" each:"max=256,text"`
}

// Equal reports whether two versions are the same; nil is an unknown version.
func (v *Version) Equal(o *Version) bool { return reflect.DeepEqual(v, o) }

// Drift says, a line each, what a newer version changes for a run that went on under an older one. What makes calls
// of the run impossible comes first, with the requested calls, by tool; the build comes last. It is empty if one of them is nil.
func Drift(older, newer *Version, requested map[string]int) []string {
	if older == nil || newer == nil {
		return nil
	}
	var list []string
	if older.saysTools() && newer.saysTools() {
		list = older.toolChanges(newer, requested)
	}
	if older.Build != newer.Build {
		list = append(list, "build "+cmp.Or(newer.Build, "unknown")+", was "+cmp.Or(older.Build, "unknown"))
	}
	return list
}

func (v *Version) saysTools() bool { return v.Tools != nil || v.ToolsDigest != "" }

// toolChanges says what a newer version changes in the tools and the prompt.
func (v *Version) toolChanges(newer *Version, requested map[string]int) []string {
	var gone, changed, added []string
	if v.ToolsDigest == newer.ToolsDigest {
		for i := range v.Tools {
			name := v.Tools[i].Name
			switch is, n := newer.tool(name), requested[name]; {
			case is != nil:
				changed = append(changed, v.Tools[i].changes(is)...)
			case n > 0:
				gone = append(gone, fmt.Sprintf("tool %s is gone: %d requested %s cannot be made", name, n, number(n, "call", "calls")))
			default:
				gone = append(gone, "tool "+name+" is gone")
			}
		}
		for i := range newer.Tools {
			if name := newer.Tools[i].Name; v.tool(name) == nil {
				added = append(added, "tool "+name+" is new")
			}
		}
	} else {
		changed = append(changed, "the tools changed: they are too many to compare")
	}
	if v.Prompt != newer.Prompt {
		added = append(added, "the system prompt changed: a run keeps the one of its first turn")
	}
	return slices.Concat(gone, changed, added)
}

func (v *Version) tool(name string) *ToolVersion {
	if i := slices.IndexFunc(v.Tools, func(t ToolVersion) bool { return t.Name == name }); i >= 0 {
		return &v.Tools[i]
	}
	return nil
}

// changes says what a newer version of the tool changes.
func (t *ToolVersion) changes(newer *ToolVersion) (list []string) {
	say := func(names []string, what string) {
		if len(names) > 0 {
			list = append(list, fmt.Sprintf("tool %s: %s %s %s", t.Name, number(len(names), "argument", "arguments"), strings.Join(names, ", "), number(len(names), "is ", "are ")+what))
		}
	}
	only := func(names, others []string, in bool) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) != in })
	}
	had := slices.Concat(t.Required, t.Optional)
	has := slices.Concat(newer.Required, newer.Optional)
	if len(had) > 0 && len(has) > 0 {
		say(only(had, has, false), "gone")
		say(only(newer.Required, had, false), "new and required")
		say(only(newer.Optional, had, false), "new")
		say(only(newer.Required, t.Optional, true), "required now")
		say(only(newer.Optional, t.Required, true), "optional now")
	}
	if len(list) == 0 && t.Schema != newer.Schema {
		list = append(list, "tool "+t.Name+": the schema of its arguments changed")
	}
	if t.Replay != newer.Replay {
		list = append(list, fmt.Sprintf("tool %s: its policy is %s, was %s", t.Name, newer.Replay, t.Replay))
	}
	if t.Version != newer.Version {
		list = append(list, fmt.Sprintf("tool %s: version %s, was %s", t.Name, cmp.Or(newer.Version, "none"), cmp.Or(t.Version, "none")))
	}
	return list
}

func number(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}

// Drift is [Drift] from the recorded version, with the calls that it makes impossible, and the turn that recorded it. asks
// means that a person must allow the newer version: one of the two has [DriftAsk], and more than the build differs, or may
// differ, because one does not say its tools.
func (s *State) Drift(newer *Version) (changes []string, since int32, asks bool) {
	recorded, since := s.Version()
	requested := make(map[string]int)
	for i := range s.Head.OpenCalls {
		if c := &s.Head.OpenCalls[i]; c.State.Requested() {
			requested[c.Name]++
		}
	}
	if changes = Drift(recorded, newer, requested); len(changes) == 0 {
		return nil, since, false
	}
	saysTools := recorded.saysTools() && newer.saysTools()
	return changes, since, (recorded.Rule == DriftAsk || newer.Rule == DriftAsk) && (!saysTools || len(recorded.toolChanges(newer, nil)) > 0)
}

// first is the build that goes on with the run first, by the rule of the version; without a version it is the one before.
func (v *Version) first(before string) string {
	switch {
	case v == nil:
		return before
	case v.Rule == DriftSameBuild || v.Rule == DriftAsk:
		return v.Build
	}
	return ""
}

// Version returns the latest version of the agent that the run has recorded, and the turn that recorded it: 0 for the
// run's start. It is nil if no executor said one.
func (s *State) Version() (*Version, int32) {
	for _, t := range slices.Backward(s.Turns) {
		if t.Version != nil {
			return t.Version, t.Turn
		}
	}
	if s.Started == nil {
		return nil, 0
	}
	return s.Started.Version, 0
}
