package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
)

// missionRows are the rows of docs/mission.md.
var missionRows = slices.Concat(missionRowsTo18, missionRowsFrom19)

var missionRowsTo18 = []missionRow{
	{
		1, "Boundary events", "Each boundary of the turns and tool calls of `fix-login` is a CloudEvent in a JetStream stream.",
		[]shown{
			{command: `nats sub --stream WAYMARK_EVENTS_default_0 --all --headers-only --count 1 waymark.events.default.0.fix-login`, first: 12, want: []string{
				`^\[#1\] Received JetStream message: stream: WAYMARK_EVENTS_default_0 .*`, `^ce-specversion: 1\.0$`, `^ce-subject: fix-login$`, `^ce-type: io\.waymark\.run\.started\.v1$`,
			}},
			{command: `nats sub --stream WAYMARK_EVENTS_default_0 --all --headers-only --count 18 waymark.events.default.0.fix-login | grep ce-type`, want: []string{
				`^ce-type: io\.waymark\.turn\.started\.v1$`, `^ce-type: io\.waymark\.turn\.answered\.v1\n(.*\n)?ce-type: io\.waymark\.tool\.(failed|returned)\.v1$`,
				`^ce-type: io\.waymark\.tool\.returned\.v1\nce-type: io\.waymark\.run\.ended\.v1\s*\z`,
			}},
		},
	},
	{
		2, "Checkpoint bucket", "The daemon folds the events into one key of a KV bucket for each run. `overview` is for people.",
		[]shown{
			{command: `nats kv ls WAYMARK_CHECKPOINTS_default_0 '*'`, want: []string{`^fix-login$`, `^invoice$`}, not: []string{`\.`}},
			{command: `nats kv get WAYMARK_CHECKPOINTS_default_0 invoice --raw | jq .overview`, want: []string{
				`"model_tier": "large"`, `"tenant": "acme"`, `"turn": 2`, `"answer": "I pay\."`, `"next": "wait"`, `"call b \(pay\) of turn 2: hold, .*waymark plan invoice"`,
			}},
		},
	},
	{
		3, "Recovery", "The executor of `lost` was shut down. One request takes the run over: the reply has the new epoch and the latest checkpoint with its " +
			"conversation.",
		[]shown{{
			command: `nats req --raw waymark.recover.default.lost '{"executor":"laptop","request_id":"try-1"}' | jq -c '.epoch, .next_sequence, .head.status, .head.executor, .head.turn, .state.messages[]'`,
			want: []string{
				`\A3\n1\n"running"\n"laptop"\n2$`, `^\{"role":"user",.*"Watch the gate\."\}\],"turn":1,`, `^\{"role":"assistant",.*"type":"tool_call","id":"a","name":"look","arguments":\{\}\}\],"turn":1,`,
				`^\{"role":"tool",.*"look is done"\}\],"turn":1,`, `^\{"role":"assistant",.*"name":"sleep","arguments":\{\}\}\],"turn":2,`,
			},
		}},
	},
	{
		4, "Packages and layout", "The folders of the repository, and the modules it uses.",
		[]shown{
			{command: `ls -d go.mod go.sum cmd consumer publisher kvstore schema deploy Makefile`, want: []string{`\AMakefile\ncmd\nconsumer\ndeploy\ngo\.mod\ngo\.sum\nkvstore\npublisher\nschema\s*\z`}},
			{command: `go list -m github.com/nats-io/nats.go github.com/nats-io/nats-server/v2 github.com/cloudevents/sdk-go/v2 github.com/rs/zerolog`, want: []string{
				`^github\.com/nats-io/nats\.go v`, `^github\.com/nats-io/nats-server/v2 v2\.`, `^github\.com/cloudevents/sdk-go/v2 v2\.`, `^github\.com/rs/zerolog v`,
			}},
		},
	},
	{
		5, "Observers and tests", "An observer subscribes to the accepted events of a kind, of all runs. Tests run a server, a daemon and executors that they kill with one " +
			"package.",
		[]shown{
			{command: `nats sub 'waymark.observed.default.tool.failed.*'`, want: []string{
				`^\[#\d+\] Received on "waymark\.observed\.default\.tool\.failed\.fix-login"$`, `^ce-type: io\.waymark\.tool\.failed\.v1$`, `"message":"3 tests fail"`,
				`^\[#\d+\] Received on "waymark\.observed\.default\.tool\.failed\.guarded"$`,
			}},
			{command: `go doc ./publisher/waymarktest Start`, want: []string{`^func Start\(tb testing\.TB\) \*World$`}},
		},
	},
	{
		6, "Life of a turn", "Observers get a notice when a turn is created, updated and finalized. In turn 2 of `fix-login` the executor was killed within a call, and " +
			"another one finished the turn.",
		[]shown{
			{command: `nats sub --headers-only 'waymark.observed.default.turn.*.fix-login' | grep Received`, want: []string{
				`^\[#\d+\] Received on "waymark\.observed\.default\.turn\.created\.fix-login"$`, `^\[#\d+\] Received on "waymark\.observed\.default\.turn\.updated\.fix-login"$`,
				`^\[#\d+\] Received on "waymark\.observed\.default\.turn\.finalized\.fix-login"$`,
			}},
			{command: `nats sub --raw 'waymark.observed.default.turn.*.fix-login' | grep '"turn":2,"status"'`, want: []string{
				`"turn":2,"status":"answered","epoch":2,.*"changes":1,.*"calls":\{"recorded":1,"open":1\},"event":"turn\.answered"`,
				`"turn":2,"status":"answered","epoch":3,.*"changes":2,.*"event":"run\.resumed"`,
				`"turn":2,"status":"completed","epoch":3,.*"changes":\d,.*"calls":\{"recorded":1,"returned":1\},"event":"tool\.returned"`,
			}},
		},
	},
	{
		7, "Content", "The state has messages, tool calls, results and errors of each turn. An error ended the run `broken` as failed.",
		[]shown{
			{command: `waymark runs get fix-login --view state`, want: []string{
				`^ +"messages": \[`, `^ +"content": "Fix the login\."$`, `^ +"content": "I read the code first\."$`, `^ +"calls": \[`, `^ +"result": "read_file is done"`,
				`^ +"message": "3 tests fail"`, `^ +"result": "edit is done"`,
			}},
			{command: `waymark runs get broken`, want: []string{`^status +failed$`, `^last error +error: the provider refuses the key$`}},
		},
	},
	{
		8, "Checkpoint events", "Each put of a checkpoint is published as an event: created, updated or finalized.",
		[]shown{{command: `nats sub --headers-only 'waymark.checkpoints.default.*.fix-login' | grep -E 'ce-(type|subject)' | sort -u`, want: []string{
			`\Ace-subject: fix-login\nce-type: io\.waymark\.checkpoint\.created\.v1\nce-type: io\.waymark\.checkpoint\.finalized\.v1\nce-type: io\.waymark\.checkpoint\.updated\.v1$`,
		}}},
	},
	{
		9, "No loss", "`fix-login` was taken over in the middle of its third call. The sequence of its tool calls is whole, and is read back as it was recorded. The " +
			"package of events and fold knows no server.",
		[]shown{
			{command: `waymark verify fix-login`, first: 3, want: []string{`^state +whole\nevents +18$`}},
			{command: `waymark runs show fix-login`, want: []string{`^.* orphaned +ex-2 fell silent\n.* taken over +by ex-3 \(claim\)\n.* edit +█.*\n(.*\n)?.* model .*\n.* run_tests `, `^.* completed +It does\.$`}},
			{command: `go list -f '{{join .Imports "\n"}}' ./schema`, want: []string{`^github\.com/cloudevents/sdk-go/v2/event$`}, not: []string{`nats`, `^net$`, `^os$`, `waymark/(consumer|internal|kvstore|publisher)`}},
		},
	},
	{
		10, "History", "Each boundary of a run can be restored. The last five checkpoints of `whole` are kept. One of `left` is made by hand, with state. " +
			"The latest checkpoint of `damaged` was changed in the bucket: it is refused, and segments and log are used.",
		[]shown{
			{command: `waymark runs history fix-login`, first: 1, want: []string{`^seq:3\.8 +run\.ended .* completed +[0-9a-f]{16}$`}},
			{command: `waymark runs history whole | grep -cE ' [0-9]{16}( |$)'`, want: []string{`\A5\s*\z`}},
			{command: `waymark checkpoint left --state plan.json --name by-hand`, want: []string{`^checkpoint +mark:by-hand of run left$`, `^set +plan$`, `waymark resume left --at mark:by-hand`}, before: func(m *mission) {
				m.writes("plan.json", `{"plan": ["lock the door"]}`)
			}},
			{command: `waymark runs get left --at mark:by-hand --view state | jq -c '.values[].value'`, want: []string{`^\["lock the door"\]$`}},
			{command: `waymark verify damaged; echo $?`, want: []string{`^state +DAMAGED$`, `^checkpoints +5$`, `sum differs: corrupt stored data; recovery uses segments and log$`, `^6$`}},
		},
	},
	{
		11, "Resume", "`fix-logout` ended after five calls. It continues after its third call, with the state and the artifact of that point. The checkpoint says " +
			"what the next executor does.",
		[]shown{
			{command: `waymark resume fix-logout --step 3`, want: []string{`^resumed +run fix-logout after result:3$`, `^left behind +\d+ records: .*2 calls$`, `^status +interrupted$`, `^epoch +\d+$`}},
			{command: `waymark runs get fix-logout --view state`, want: []string{
				`^ +"test it",\n +"tell the customer"$`, `^ +"tool_call_id": "c",$`, `^ +"artifact_id": "patch",$`,
			}, not: []string{`"tool_call_id": "d"`}},
			{
				command: `nats kv get WAYMARK_CHECKPOINTS_default_0 fix-logout --raw | jq .overview.recovery`, later: true,
				want: []string{`"next": "continue"`, `"an executor takes the run over and continues it"`, `"turn 3 begins: .*"`},
			},
		},
	},
	{
		12, "Cleanup", "Without flags, the command lists failed runs older than seven days, and removes nothing.",
		[]shown{
			{command: `waymark cleanup`, want: []string{`^dry run +no run was removed; .*failed runs older`, `^to remove them +waymark cleanup --max-age 7d --status failed$`, `^policy .*failed 7 days`, `^to be removed +0 runs`}},
			{
				command: `waymark cleanup --max-age 1s --grace 1s --status failed --dry-run`, first: 1, want: []string{
					`^broken +failed .*older than policy$`, `^bounded +failed .*older than policy$`, `^to be removed +2 runs`,
				}, not: []string{`fix-login`},
				before: func(m *mission) {
					m.until(func() bool {
						_, out, _ := m.ask("", "", "cleanup", "--max-age", "1s", "--grace", "1s", "--status", "failed", "--dry-run", "--quiet")
						return strings.Count(out, "\n") == 2
					})
				},
			},
		},
	},
	{
		13, "Windows", "Two spellings of a Windows path are one file.",
		[]shown{
			{command: `cat windows.json`, want: []string{`C:\\\\repo\\\\Lexer\.go`, `c:/repo/lexer\.go`}, before: func(m *mission) {
				m.writes("windows.json", "{\n  \"reason\": \"task_complete\",\n  \"completed\": [{\"file\": \"C:\\\\repo\\\\Lexer.go\", \"status\": \"done\"}],\n"+
					"  \"context\": {\"filesModified\": [\"C:\\\\repo\\\\Lexer.go\", \"c:/repo/lexer.go\", \"C:\\\\repo\\\\parser.go\"]}\n}\n")
			}},
			{command: `waymark handoff check windows.json`, want: []string{`^valid +windows\.json$`, `^modified files +2$`}},
		},
	},
	{
		14, "Factory", "A fleet handle creates the handle of each run, with tenant and tier. A program passed the handle of `adopted` to an executor: the run stays " +
			"in epoch 1. `scratch` is not durable, and is recorded nowhere.",
		[]shown{
			{command: `waymark runs ls --label tenant=acme --tier small`, first: 1, want: []string{`^adopted +porter .* completed +1 `}, not: []string{`^fix-login `}},
			{command: `waymark runs get adopted`, want: []string{`^model tier +small$`, `^status +completed$`, `^epoch +1$`, `^turn +2$`, `^labels +tenant=acme$`}},
			{command: `waymark runs get scratch; echo $?`, first: 3, want: []string{`has no run scratch$`, `^4$`}},
		},
	},
	{
		15, "Outcome", "`nightly` returned without an error, the model of `broken` with one. The executor of `lost` was shut down: others recover that run.",
		[]shown{
			{command: `waymark runs ls | grep -E '^(RUN|nightly|broken|lost) '`, first: 1, want: []string{`^nightly .* completed .*`, `^broken .* failed .*`}, later: true},
			{command: `waymark events lost --all --no-follow --type run`, want: []string{`.* run\.interrupted +shutdown$`, `.* run\.resumed +executor laptop, request$`}, not: []string{`run\.ended`}},
		},
	},
	{
		16, "Recovery at boot", "The executor of `nightly` was killed in its second turn and started again. It continued without a command and without a second answer of " +
			"turn 2.",
		[]shown{
			{command: `waymark runs show nightly`, want: []string{`^.* 2 +model .*\n.* orphaned +ex-1 fell silent\n.* taken over +by ex-1 \(claim\)\n.* look .*\n.* 3 +model `, `^.* completed +All is quiet\.$`}},
			{command: `waymark runs get nightly --view state | jq -c '.messages[].role'`, want: []string{`\A"user"\n"assistant"\n"assistant"\n"assistant"\n\z`}},
		},
	},
	{
		17, "Phases", "The executor of `release` was killed in the phase build. The next one skips the phase plan, and begins build again.",
		[]shown{{
			command: `waymark events release --all --no-follow --type phase,run.resumed,run.orphaned`,
			want:    []string{`phase\.started .*plan.*\n.*phase\.completed .*plan.*\n.*phase\.started .*build.*\n.*run\.orphaned.*\n.*run\.resumed.*\n.*phase\.started .*build.*\n.*phase\.completed .*build`},
			not:     []string{`(?s)phase\.started [^\n]*plan.*phase\.started [^\n]*plan`},
		}},
	},
	{
		18, "Throttle", "The daemon puts at most one checkpoint of a run in a second. An executor records 40 values at once: a reader still gets all events.",
		[]shown{
			{command: `waymark serve --state-dir slow --shards 1 --http 127.0.0.1:9478 --checkpoint-interval 1s`, first: 3, want: []string{`^waymark is ready: .*`}, after: (*mission).throttled},
			{
				command: `curl -s http://127.0.0.1:9478/metrics | grep -E '^waymark_fold_(checkpoints|events_applied)_total'`, later: true,
				want: []string{`^waymark_fold_checkpoints_total\{.*\} [1-9]$`, `^waymark_fold_events_applied_total\{.*\} 42$`},
			},
			{command: `waymark runs get throttled --state-dir slow`, want: []string{`^counts +42 events`}},
		},
	},
}

// writes makes a file for the commands.
func (m *mission) writes(name, text string) {
	m.t.Helper()
	require.NoError(m.t, os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o600))
}

// throttled has a run worked on under the daemon that puts few checkpoints.
func (m *mission) throttled() {
	m.t.Helper()
	end, err := natsconn.Discover(m.t.Context(), filepath.Join(m.dir, "slow"))
	require.NoError(m.t, err)
	nc, err := end.Connect(nats.ReconnectBufSize(-1))
	require.NoError(m.t, err)
	defer nc.Close()
	f, err := publisher.Connect(m.t.Context(), publisher.Config{Conn: nc, Executor: "ex-8", Agent: "counter"})
	require.NoError(m.t, err)
	run, err := f.Start(m.t.Context(), publisher.RunSpec{ID: "throttled"})
	require.NoError(m.t, err)
	for i := range 40 {
		require.NoError(m.t, run.SetState(m.t.Context(), "step", i))
	}
	require.NoError(m.t, run.End(m.t.Context(), publisher.RunEnd{}))
	require.NoError(m.t, f.Close(m.t.Context()))
}
