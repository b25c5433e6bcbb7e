package demo

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/schema"
)

// embedded are the transcripts that the demonstration plays, written for it.
//
//go:embed demodata
var embedded embed.FS

// inputFiles are the transcripts of each executor, and how often each is played. The run ids of copies end in -2, -3 and so on.
var inputFiles = []struct {
	executor, file string
	format         transcript.Format
	copies         int
}{
	{"counter", "support.jsonl", transcript.OpenAIChat, 3},
	{"coder", "coding-session.jsonl", transcript.ClaudeCode, 2},
	{"coder", "fix-rounding.traj", transcript.SWEAgent, 2},
	{"workshop", workshopName, "", 1},
}

const workshopName = "workshop.json"

// plannedRun is one run of the demonstration.
type plannedRun struct {
	executor string
	file     string
	format   transcript.Format
	script   *transcript.Run
}

// writeInputs writes the embedded files into dir, for readers that want files.
func writeInputs(dir string) error {
	return fs.WalkDir(embedded, "demodata", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(strings.TrimPrefix(name, "demodata")))
		if entry.IsDir() {
			return os.MkdirAll(to, 0o700)
		}
		b, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(to, b, 0o600)
	})
}

// plannedRuns reads the runs of the demonstration, in the order in which their executors play them.
func plannedRuns(inputs string) ([]plannedRun, error) {
	var runs []plannedRun
	for _, f := range inputFiles {
		for n := 1; n <= f.copies; n++ {
			scripts, err := scriptsOf(filepath.Join(inputs, f.file), f.format)
			if err != nil {
				return nil, err
			}
			for _, s := range scripts {
				r := plannedRun{executor: f.executor, file: f.file, format: f.format, script: s}
				if n > 1 {
					s.ID = fmt.Sprintf("%s-%d", s.ID, n)
					if s.Parent != nil {
						parent := *s.Parent
						parent.Run = fmt.Sprintf("%s-%d", parent.Run, n)
						s.Parent = &parent
					}
				}
				runs = append(runs, r)
			}
		}
	}
	return runs, nil
}

func scriptsOf(file string, format transcript.Format) ([]*transcript.Run, error) {
	if format == "" {
		script, err := workshopScript(file)
		return []*transcript.Run{script}, err
	}
	f, err := transcript.Open(file, transcript.Options{Format: format})
	if err != nil {
		return nil, err
	}
	scripts := slices.Collect(f.Runs())
	if err := f.Err(); err != nil {
		return nil, err
	}
	if rep := f.Report(); len(rep.Problems) > 0 {
		return nil, rep.Problems[0]
	}
	return scripts, nil
}

// workshopFile is the script of the run with real tools: what the model says and asks for. It has no results
// of tools: they run. Only the proof uses expect and files.
type workshopFile struct {
	ID    string `json:"id"`
	Task  string `json:"task"`
	Turns []struct {
		Ask   string         `json:"ask"`
		Say   string         `json:"say"`
		Calls []workshopCall `json:"calls"`
	} `json:"turns"`
	Finish string            `json:"finish"`
	Files  map[string]string `json:"files"`
}

type workshopCall struct {
	ID        string         `json:"id"`
	Tool      string         `json:"tool"`
	Replay    schema.Replay  `json:"replay"`
	Arguments jsontext.Value `json:"arguments"`
	Expect    string         `json:"expect"`
}

func readWorkshop(file string) (*workshopFile, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	w := new(workshopFile)
	if err := json.Unmarshal(b, w); err != nil {
		return nil, fmt.Errorf("%s: %w", path.Base(file), err)
	}
	return w, nil
}

// workshopScript makes a script of the file.
func workshopScript(file string) (*transcript.Run, error) {
	w, err := readWorkshop(file)
	if err != nil {
		return nil, err
	}
	message := func(role string, parts ...schema.Part) *transcript.Message {
		return &transcript.Message{Message: schema.Message{Role: role, Parts: parts}}
	}
	run := &transcript.Run{ID: w.ID, Agent: "workshop", End: transcript.End{Status: schema.StatusCompleted, Summary: w.Finish}}
	for i, t := range w.Turns {
		turn := &transcript.Turn{Number: int32(i + 1)} //nolint:gosec // a handful
		if t.Ask != "" {
			turn.New = append(turn.New, *message(schema.RoleUser, schema.Text(t.Ask)))
		}
		say := message(schema.RoleAssistant, schema.Text(t.Say))
		calls := make([]*transcript.Call, len(t.Calls))
		for j, c := range t.Calls {
			say.Parts = append(say.Parts, schema.CallPart(c.ID, c.Tool))
			calls[j] = &transcript.Call{
				Key:  schema.CallKey{Turn: turn.Number, ToolCallID: c.ID, Occurrence: 1},
				Name: c.Tool, Arguments: c.Arguments, Answered: true, Source: workshopPolicy(c.Replay),
			}
		}
		turn.Answer = transcript.Answer{Message: say.Message, Calls: calls}
		for _, c := range calls {
			turn.Items = append(turn.Items, transcript.Item{Result: c})
		}
		for _, c := range calls {
			turn.Items = append(turn.Items, transcript.Item{Message: message(schema.RoleTool, schema.ResponsePart(c.Key.ToolCallID))})
		}
		run.Steps = append(run.Steps, transcript.Step{Turn: turn})
	}
	run.Steps = append(run.Steps, transcript.Step{Turn: &transcript.Turn{
		Number: int32(len(w.Turns) + 1), //nolint:gosec // a handful
		Answer: transcript.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(w.Finish)}}},
	}})
	return run, nil
}

// workshopPolicy is the replay policy of a call in the script, until the call is published.
func workshopPolicy(p schema.Replay) jsontext.Value {
	return jsontext.Value(`{"workshop":{"replay":"` + string(p) + `"}}`)
}

// policyOf is the replay policy of a call. Calls of transcripts only read.
func policyOf(c *transcript.Call) schema.Replay {
	var source struct {
		Workshop struct {
			Replay schema.Replay `json:"replay"`
		} `json:"workshop"`
	}
	if len(c.Source) == 0 || json.Unmarshal(c.Source, &source) != nil || source.Workshop.Replay == "" {
		return schema.ReplayPure
	}
	return source.Workshop.Replay
}
