package lint_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fuzzed lists every function that decodes something, and the fuzz target that tries it; or why none does, after a
// dash. A new decoder needs a line here, and a target if its input may come from outside.
var fuzzed = map[string]string{
	"internal/adapter/codingagent.Bridge.ServeHTTP":  "internal/adapter/codingagent.FuzzHooks",
	"internal/adapter/codingagent.Bridge.background": "internal/adapter/codingagent.FuzzHooks",
	"internal/adapter/codingagent.Dialect.Installed": "internal/adapter/codingagent.FuzzInstall",
	"internal/adapter/codingagent.Begins":            "- a name of an event, read into plain fields",
	"internal/adapter/codingagent.Bridge.leave":      "- a source that this program made",
	"internal/adapter/codingagent.shown":             "internal/adapter/codingagent.FuzzHooks",
	"internal/adapter/codingagent.Ask":               "- a file that this program wrote, read into plain fields",

	"publisher/waymarktest.crashes.history":     "- reads events of the test's own log for a report",
	"publisher/waymarktest.plain":               "- compares what the fold of a test has accepted",
	"schema.DecodeCheckpoint":                   "schema.FuzzStored",
	"schema.checkFormat":                        "schema.FuzzStored",
	"schema.splitSegment":                       "schema.FuzzStored",
	"schema.DecodeKeyframe":                     "schema.FuzzStored",
	"schema.FrameReader.uvarint":                "schema.FuzzStored",
	"schema.ParseData":                          "schema.FuzzParseData",
	"schema.looksStructured":                    "schema.FuzzDecode",
	"schema.decodeStructured":                   "schema.FuzzDecode",
	"schema.named":                              "schema.FuzzApply",
	"schema.Prepared.removal":                   "schema.FuzzApply",
	"schema.SameJSON":                           "schema.FuzzSameJSON",
	"schema.withoutMembers":                     "schema.FuzzApply",
	"schema.contentWalk.values":                 "internal/base/encryption.FuzzOpen",
	"schema.contentWalk.addText":                "internal/base/encryption.FuzzOpen",
	"schema.contentWalk.members":                "internal/base/encryption.FuzzOpen",
	"internal/base/encryption.keyOf.value":      "internal/base/encryption.FuzzOpen",
	"internal/cli/storage.readReceipt":          "- a receipt, read into plain fields; what is left of the run is asked of the daemon",
	"internal/cli/storage.forksIn":              "- the daemon's answer, read into plain fields that are shown",
	"kvstore.Blob.judge":                        "kvstore.FuzzStored",
	"kvstore.endedOf":                           "kvstore.FuzzStored",
	"kvstore.decodeFormat":                      "kvstore.FuzzStored",
	"kvstore.Removals.Get":                      "- the daemon's own list, read into plain fields; an unreadable entry begins again",
	"kvstore.Checkpoints.Unposted":              "- the daemon's own cursor, read into plain fields",
	"publisher.Run.consumeEnd":                  "- the payload of a signal that the daemon signs, read into plain fields",
	"internal/nats/blob.described":              "internal/nats/blob.FuzzDescription",
	"internal/nats/access.Prover":               "internal/nats/access.FuzzProver",
	"internal/nats/access.Proves":               "- the NATS server's own answer, read into plain fields",
	"internal/base/answerschema.Parse":          "internal/base/answerschema.FuzzCheck",
	"internal/base/answerschema.Schema.names":   "internal/base/answerschema.FuzzCheck",
	"internal/base/answerschema.invalid":        "internal/base/answerschema.FuzzCheck",
	"internal/base/answerschema.check.object":   "internal/base/answerschema.FuzzCheck",
	"internal/base/answerschema.check.array":    "internal/base/answerschema.FuzzCheck",
	"consumer/service.task.decode":              "consumer/service.FuzzRequests",
	"consumer/service.readPlace":                "consumer/service.FuzzPlace",
	"consumer/liveness.Heartbeats.executor":     "consumer/liveness.FuzzHeard",
	"internal/nats/fleetclient.ErrorOf":         "internal/nats/fleetclient.FuzzReplies",
	"internal/nats/fleetclient.Decode":          "internal/nats/fleetclient.FuzzReplies",
	"publisher.tooDeep":                         "publisher.FuzzAnswers",
	"publisher.parameters":                      "- the zero value of a type of the program, written a line before",
	"publisher.NewTool":                         "publisher.FuzzAnswers",
	"publisher.Tool.check":                      "publisher.FuzzAnswers",
	"publisher.plainArguments":                  "publisher.FuzzAnswers",
	"publisher.invalidAnswer":                   "publisher.FuzzAnswers",
	"publisher.readVerify":                      "publisher.FuzzAnswers",
	"publisher.approvalOf":                      "publisher.FuzzAnswers",
	"publisher.Signal.Message":                  "publisher.FuzzAnswers",
	"publisher.largestField":                    "publisher.FuzzAnswers",
	"publisher.redactor.value":                  "publisher.FuzzAnswers",
	"internal/copy/backup.readAbout":            "internal/copy/backup.FuzzBackup",
	"internal/copy/backup.description.configOf": "internal/copy/backup.FuzzBackup",
	"internal/copy/backup.checkStream":          "internal/copy/backup.FuzzBackup",
	"internal/copy/backup.decodeManifest":       "internal/copy/backup.FuzzBackup",
	"internal/look/story.SubAgent":              "- two texts of a source, read into plain fields",
	"internal/look/story.Contents":              "internal/look/story.FuzzArtifact",
	"internal/base/encryption.readable":         "internal/base/encryption.FuzzReadable",
	"internal/base/form.detailOf":               "publisher/wire.FuzzAnthropic",
	"internal/base/form.CheckJSON":              "publisher/wire.FuzzAnthropic",
	"internal/base/form.ParseArray":             "publisher/wire.FuzzAnthropic",
	"internal/base/form.ParseObject":            "publisher/wire.FuzzAnthropic",
	"internal/copy/backup.snapshot":             "- the NATS server's own answer, read into plain fields",
	"internal/nats/natsconn.serverID":           "- the NATS server's own answer, read into plain fields",
	"internal/nats/jsapi.Decode":                "- the NATS server's own answer, read into plain fields",
	"internal/cli/fleet.monitored":              "- the NATS server's own answer, read into plain fields",
	"publisher.Reader.leaderSettings":           "- the server's own answer; what is stored there is read by kvstore.decodeSettings, too",
	"internal/cli/base.Client.Ask":              "- the daemon's answer, read into plain fields that are shown",
	"internal/cli/base.Client.Daemons":          "- the answer of a daemon, read into plain fields; names are checked before they are shown",
	"internal/adapter/mcp.decode":               "internal/adapter/mcp.FuzzDecode",
	"internal/adapter/mcp.messages":             "- splits a batch; the decoder of the SDK judges each part, which goes on as it is",
	"internal/adapter/worker.lines.next":        "internal/adapter/worker.FuzzLine",
	"internal/adapter/worker.said.text":         "internal/adapter/worker.FuzzLine",
	"internal/adapter/worker.object":            "internal/adapter/worker.FuzzLine",
	"internal/look/inspector.readable":          "internal/look/inspector.FuzzShown",
	"internal/look/inbox.Problems":              "- the daemon's answer, read into plain fields that are shown",
	"publisher.Fleet.handoff":                   "- the daemon's answer, read into plain fields that are shown",
	"publisher.Fleet.noticed":                   "- a hint of three plain fields: what it names is looked up in the log",
	"publisher.answerVerify":                    "- an executor's question, read into plain fields and handed to the tool",
	"internal/nats/natsconn.ReadState":          "- this user's own file, with the user's own rights",
	"internal/cli/fleet.addCmd.write":           "- this user's own file, with the user's own rights",
	"internal/cli/runs.stateFile":               "- this user's own file, read into JSON values that the fold checks",
	"publisher.looping.offerBy":                 "- arguments of the model that Tool.check has decoded into the same type",
	"publisher.Run.GetState":                    "- JSON that the fold has checked, read into the program's own type",
	"consumer/verify.differing":                 "- both sides were written by this function",
}

// decoders are the calls that decode, by the import path of their package.
var decoders = map[string][]string{
	"github.com/go-json-experiment/json":          {"Unmarshal", "UnmarshalRead", "UnmarshalDecode"},
	"github.com/go-json-experiment/json/jsontext": {"NewDecoder"},
	"encoding/json":      {"Unmarshal", "NewDecoder"},
	"encoding/binary":    {"Uvarint", "Varint", "ReadUvarint"},
	"archive/tar":        {"NewReader"},
	"gopkg.in/yaml.v3":   {"Unmarshal", "NewDecoder"},
	"go.yaml.in/yaml/v3": {"Unmarshal", "NewDecoder"},
}

// decodes returns the functions of a file that call a decoder, with their place.
func decodes(f file) map[string]string {
	found := map[string]string{}
	for _, decl := range f.syntax.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		ast.Inspect(fn.Body, func(node ast.Node) bool {
			selector, ok := node.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if base, ok := selector.X.(*ast.Ident); ok && slices.Contains(decoders[f.imported(base.Name)], selector.Sel.Name) {
				found[f.dir()+"."+funcName(fn)] = fmt.Sprintf("%s:%d", f.path, f.line(selector.Pos()))
			}
			return true
		})
	}
	return found
}

// funcName is the name of a function, that of a method behind its receiver's type.
func funcName(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	expr := fn.Recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name + "." + fn.Name.Name
		default:
			return fn.Name.Name
		}
	}
}

// targets are the fuzz targets of the repository.
func targets(files []file) map[string]bool {
	found := map[string]bool{}
	for _, f := range files {
		for _, decl := range f.syntax.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && f.isTest() && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Fuzz") {
				found[f.dir()+"."+fn.Name.Name] = true
			}
		}
	}
	return found
}

// notShipped are packages that read no foreign input: tests, measurements, demonstrations.
func notShipped(f file) bool {
	for _, dir := range []string{"internal/harness", "tools/bench", "tools/dist", "docs", "schema/internal/gen"} {
		if f.dir() == dir || strings.HasPrefix(f.dir(), dir+"/") {
			return true
		}
	}
	return f.isTest() || strings.HasPrefix(f.path, "internal/cli/demo/")
}

func unfuzzed(files []file, table map[string]string) (findings []string) {
	have, seen := targets(files), map[string]bool{}
	for _, f := range files {
		if notShipped(f) {
			continue
		}
		for name, place := range decodes(f) {
			seen[name] = true
			if table[name] == "" {
				findings = append(findings, fmt.Sprintf("%s: %s decodes, and no fuzz target is named for it: write one and add it to internal/lint/fuzz_test.go", place, name))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		target := table[name]
		switch {
		case !seen[name]:
			findings = append(findings, fmt.Sprintf("internal/lint/fuzz_test.go: %s decodes nothing any more: take its line out", name))
		case !strings.HasPrefix(target, "-") && !have[target]:
			findings = append(findings, fmt.Sprintf("internal/lint/fuzz_test.go: %s: there is no target %s", name, target))
		case strings.HasPrefix(target, "-") && len(target) < 12:
			findings = append(findings, fmt.Sprintf("internal/lint/fuzz_test.go: %s: say why it is not fuzzed", name))
		}
	}
	return findings
}

func TestFuzz_Decoders_HaveTargets(t *testing.T) { report(t, unfuzzed(goFiles(t), fuzzed)) }

func TestFuzz_DecoderWithoutTarget_Found(t *testing.T) {
	files := []file{
		parseFile(t, "a/a.go", "package a\nimport \"encoding/json\"\nfunc (t *T[K]) Read() { json.Unmarshal(nil, nil) }"),
		parseFile(t, "a/a_test.go", "package a\nfunc FuzzRead() {}"),
	}
	require.Len(t, unfuzzed(files, nil), 1)
	require.Contains(t, unfuzzed(files, nil)[0], "a/a.go:3: a.T.Read decodes")
	require.Empty(t, unfuzzed(files, map[string]string{"a.T.Read": "a.FuzzRead"}))
	require.Empty(t, unfuzzed(files, map[string]string{"a.T.Read": "- reads what this program wrote"}))
	require.Contains(t, unfuzzed(files, map[string]string{"a.T.Read": "a.FuzzOther"})[0], "there is no target")
	require.Contains(t, unfuzzed(files, map[string]string{"a.T.Read": "a.FuzzRead", "a.Gone": "a.FuzzRead"})[0], "decodes nothing any more")
	require.Contains(t, unfuzzed(files, map[string]string{"a.T.Read": "- no"})[0], "say why")
}

// TestFuzz_ServiceRequests_HaveTargets compares the verbs of the schema with those that the service's fuzz target sends.
func TestFuzz_ServiceRequests_HaveTargets(t *testing.T) {
	verbs, sent := map[string]bool{}, map[string]bool{}
	for _, f := range goFiles(t) {
		for _, decl := range f.syntax.Decls {
			switch d := decl.(type) {
			case *ast.GenDecl:
				if f.dir() != "schema" || d.Tok != token.CONST {
					continue
				}
				for _, spec := range d.Specs {
					values, ok := spec.(*ast.ValueSpec)
					require.True(t, ok)
					for _, name := range values.Names {
						if rest, ok := strings.CutPrefix(name.Name, "Verb"); ok && rest != "" {
							verbs[name.Name] = true
						}
					}
				}
			case *ast.FuncDecl:
				if f.dir() == "consumer/service" && d.Name.Name == "FuzzRequests" {
					ast.Inspect(d, func(node ast.Node) bool {
						if s, ok := node.(*ast.SelectorExpr); ok {
							sent[s.Sel.Name] = true
						}
						return true
					})
				}
			}
		}
	}
	require.Greater(t, len(verbs), 8)
	for verb := range verbs {
		require.True(t, sent[verb], "consumer/service.FuzzRequests does not send schema.%s: add it to its verbs, with seeds", verb)
	}
}
