package cli

import "strings"

var missionRowsFrom19 = []missionRow{
	{
		19, "Hand-off", "A document of another agent is checked before it is offered. The SDK built the offer of `port`, lists a file once and stamps the time.",
		[]shown{
			{command: `cat handoff.json`, want: []string{`"referencePattern": "lexer\.go"`, `"createdAt"`, `"agentId"`, `"filesModified"`, `"skipped": 1`}, before: func(m *mission) {
				m.writes("handoff.json", `{
  "completed": [{"file": "lexer.go", "status": "done", "tests": {"passed": 14, "skipped": 1, "failed": 0}, "notes": "as in C"}],
  "remaining": [{"file": "parser.go", "description": "Port the statements.", "referencePattern": "lexer.go", "priority": "high"}],
  "context": {"decisions": ["no cgo"], "patterns": ["one function a rule"], "issues": ["labels"], "filesModified": ["lexer.go"]},
  "createdAt": "2026-01-02T03:04:05Z", "agentId": "agent-7", "reason": "threshold_critical"
}
`)
			}},
			{command: `waymark handoff check handoff.json`, want: []string{`^valid +handoff\.json$`, `^characters +\d+$`, `^completed +1$`, `^remaining +1$`}},
			{command: `waymark handoff check long.json`, want: []string{`^valid +long\.json$`, `^warning: the hand-off has 4001 characters, more than 4000: .*`}, before: func(m *mission) {
				m.writes("long.json", `{"reason": "error", "context": {"issues": ["`+strings.Repeat("x", 4001)+`"]}}`)
			}},
			{command: `waymark events port --all --no-follow --json --type handoff.offered | jq .data`, want: []string{
				`"reason": "threshold_critical"`, `"file": "lexer\.go",\n.*"status": "done",\n.*"tests": \{\n.*"passed": 14,\n.*"skipped": 1,\n.*"failed": 2`, `"reference_pattern": "lexer\.go"`, `"priority": "high"`,
				`"files_modified": \[\n +"lexer\.go"\n +\]`, `"created_at": "`, `"agent_id": "porter"`,
			}},
		},
	},
	{
		20, "Continuation", "The run `port` handed its work on. `port-2` continues from the offer with a fresh context, and ends the work.",
		[]shown{
			{command: `waymark runs ls --parent port`, first: 1, want: []string{`^port-2 +porter .*completed`}},
			{command: `waymark runs get port-2`, want: []string{`^parent +port$`, `^continues +port, by hand-off half$`, `^status +completed$`, `^summary +The parser is ported\.$`}},
		},
	},
	{
		21, "Completion and limits", "A call of its completion tool ended `fix-login`. The agent of `bound` calls no tool, so the run has failed. `bounded` reached its limit of " +
			"two turns, and had one more to sum up.",
		[]shown{
			{command: `waymark runs ls --completion tool`, first: 1, want: []string{`^fix-login .* call e `}, not: []string{`^(nightly|bounded|adopted) `}},
			{
				command: `waymark start closer --id bound --task 'Do it.' --completion-tool submit --max-turns 3 --wait; echo $?`,
				want:    []string{`run bound has ended as failed: .*contract`, `^1$`},
			},
			{command: `waymark runs show bounded`, want: []string{`^.* limit +reached turns: 2 of 2\n.* 3 +model .*\n.* failed +Two rooms are searched, one is left\.$`}},
			{command: `waymark events bounded --all --no-follow --json --type turn.started | jq -c '.data.turn, .data.purpose'`, want: []string{`^3\n"recovery"$`}},
			{
				command: `curl -s http://127.0.0.1:9477/metrics | grep -E '^waymark_fleet_runs_(completed|limited)'`, later: true,
				want: []string{`^waymark_fleet_runs_completed_by_tool_total\{.*\} [1-9]\d*$`, `^waymark_fleet_runs_limited_total\{.*\} 1$`, `^waymark_fleet_runs_limited_summed_up_total\{.*\} 1$`},
			},
		},
	},
	{
		22, "Policy", "A policy denies deleting. In `guarded` it is enforced: `rm` did not run. In `watched` it is observed: its decision is recorded, and `rm` " +
			"ran. `fetch` failed twice in one call; the next turn calls it again.",
		[]shown{
			{
				command: `waymark events guarded --all --no-follow --type tool`, want: []string{
					`tool\.decided +a, deny, no-delete, Agents delete nothing here\..*\n.*tool\.failed +a, denied, Agents delete nothing here\.$`,
					`tool\.failed +b, error, the line is busy`, `tool\.returned +c, "fetch is done"$`,
				}, not: []string{`tool\.returned +a,`},
			},
			{command: `waymark events guarded --all --no-follow --json --type tool.failed | jq -c '.data.tool_call_id, .data.attempt'`, want: []string{`^"b"\n2$`}},
			{command: `waymark runs show watched`, want: []string{`^.* rm +█.*`, `policy +deny \(observed\) about rm; no-delete; .*`}},
		},
	},
	{
		23, "Event log", "Every event of a run is kept, with the run's id: starts, turns, calls, results, takeovers, completion, errors.",
		[]shown{
			{command: `waymark events --all --no-follow | grep ' fix-login '`, want: []string{
				` fix-login +1\.1 +run\.started +`, ` fix-login .* turn\.started +`, ` fix-login .* turn\.answered +`, ` fix-login .* tool\.returned +`, ` fix-login .* tool\.failed +`,
				` fix-login .* run\.resumed +executor ex-3, claim`, ` fix-login .* run\.ended +completed`,
			}},
			{command: `waymark events --all --no-follow | grep ' broken '`, want: []string{` broken .* run\.ended +failed, the provider `}},
		},
	},
	{
		24, "Coverage", "A checkpoint follows each boundary (a tool's result, the end of a turn), which is a point to restore. `fix-login` made five calls.",
		[]shown{
			{command: `curl -s http://127.0.0.1:9477/metrics | grep -E '^waymark_fleet_(checkpoint_coverage|boundaries)'`, later: true, want: []string{`^waymark_fleet_checkpoint_coverage_ratio\{.*\} 1$`}},
			{command: `waymark runs history fix-login --limit 0 | grep -cE 'tool.(returned|failed)'`, first: 1, want: []string{`\A5\s*\z`}},
		},
	},
	{
		25, "Replay", "`again` is a fork at the end of `fix-login`: it begins with the same calls in the same order. The executor of `invoice` was killed within a " +
			"payment: no executor pays again before a person decides.",
		[]shown{
			{command: `waymark fork fix-login --as again --hold`, first: 1, want: []string{`^continues +fix-login at end, as a fork$`}},
			{command: `waymark diff fix-login again`, want: []string{`^the same +5 steps$`}},
			{command: `waymark plan invoice`, want: []string{`^ +2 +b +1 +pay +hold +hold$`, `waymark settle invoice 2 b .*--how decided --result JSON$`, `waymark settle invoice 2 b .*--how rerun$`, `^reused +1 call, by recorded outcome$`}},
		},
	},
	{
		26, "Delegation", "`boss` delegates to `helper`, a run of its own, which waits. A person sends it a message; the agent sends its result to its parent.",
		[]shown{
			{command: `waymark runs ls --parent boss`, first: 1, want: []string{`^helper +helper .*running`}},
			{command: `waymark signal helper room --payload '"the blue one"' --by ann`, want: []string{`.*helper`}, after: func(m *mission) {
				close(m.signalled)
				m.Ended("helper")
				m.Ended("boss")
			}},
			{command: `waymark events boss --all --no-follow --type signal,run.ended`, want: []string{`signal\.sent +.*result.*chairs`, `run\.ended +completed, The helper says that it is done\.$`}},
			{command: `waymark runs get helper --view state`, want: []string{`the blue one`, `^ +"parent": \{\n.*\n.*\n +"tool_call_id": "a"`}},
		},
	},
	{
		27, "Artifacts", "Artifacts of a run are listed, and fetched with their digest checked.",
		[]shown{
			{command: `waymark artifacts fix-login`, first: 1, want: []string{`^login\.patch +patch .* in the run$`}},
			{command: `waymark artifacts fix-login patch`, first: 1, want: []string{`\A\+ cookie\s*\z`}},
		},
	},
	{
		28, "Observability", "The daemon serves metrics for the [dashboard and the alerts](observability.md) in `deploy`.",
		[]shown{{
			command: `curl -s http://127.0.0.1:9477/metrics | grep -E '^waymark_(runs|fleet_runs)_'`, later: true, want: []string{
				`^waymark_runs_live\{fleet="default"\} [1-9]`, `^waymark_fleet_runs_completed_total\{.*\} \d+$`,
			},
		}},
	},
	{
		29, "Compaction", "The context of `talk` was nearly full, so its executor compacted it. A recovery gets the summary in place of the turns that it covers.",
		[]shown{
			{command: `waymark runs show talk`, want: []string{`^.* compacted +turns through 1 in a summary, 852 tokens to \d+$`}},
			{
				command: `nats req --raw waymark.get.default.talk '{}' | jq -c '.state.messages[].parts, .state.compacted.through_turn'`,
				want:    []string{`^\[\{"type":"text","content":"Two chapters: a ship, and a storm\."\}\]$`, `^2$`}, not: []string{`I read chapter`},
			},
		},
	},
	{
		30, "Defects of its forerunners", "None of the five exists here. One mutable record: a log only grows (10). Every tenth save: each boundary has a checkpoint (24). Unused " +
			"limits: they are kept and reported (21). Pruning of live runs: a cleanup takes none of `release`, `invoice` and `lost`, nor `fix-login`, the" +
			" base of a fork. Wiped evidence: what a resume left behind stays in the record.",
		[]shown{
			{command: `waymark cleanup --max-age 0d --grace 1s --dry-run --quiet | sort -u`, later: true, want: []string{`^bound$`, `^nightly$`, `^helper$`, `^boss$`}, not: []string{`^(release|invoice|lost|left|fix-login|fix-logout)$`}},
			{command: `waymark events fix-logout --all --no-follow`, want: []string{`tool\.returned +left behind: d, "run_tests is done"`, `run\.ended +left behind: completed, It does\.`, `run\.resumed .*rewind`}},
			{command: `waymark runs history fix-logout --limit 0`, want: []string{`.* left behind`}},
		},
	},
	{
		31, "Roles and gates", "The phase deploy of `release` begins when a person has allowed it.",
		[]shown{
			{command: `waymark inbox --agent releaser`, want: []string{`release \(releaser\), .*Deploy to production\?$`, `^ +waymark input release approval\.phase\.deploy .*--allow$`, `--deny$`}},
			{command: `waymark input release --allow --by ann`, want: []string{`.*release`}, after: func(m *mission) { m.Ended("release") }},
			{command: `waymark runs show release`, want: []string{`^.* waits .*Deploy to production\?.*`, `^.*phase +deploy begins\n.*phase +deploy is completed$`, `^status +completed$`}},
		},
	},
}
