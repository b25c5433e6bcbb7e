// Package transcript reads transcripts of agents, replays them as the original executor would have published them, and
// exports runs as transcripts.
//
// It owns
//
//   - the parsers of three formats into one neutral model ([Open], [Run]): chat-completions conversations
//     ([OpenAIChat]), sessions of a coding agent with sub-agents and compaction ([ClaudeCode]),
//     trajectories of a software-engineering agent ([SWEAgent]);
//   - the plan of a run: the events to publish, in order, described once for [Events] (pure) and for [Replay] (the
//     publisher SDK), and its comparison with an existing run;
//   - the exports back into each format, and as CloudEvents ([Export], [ExportCloudEvents]).
//
// How a transcript is split into turns:
//
//	openai-chat  each assistant message begins a turn; the tool messages after it belong to it
//	claude-code  a turn is the lines that share message.id, early results included; its lines of the assistant are one answer
//	swe-agent    each assistant entry of history that is no demonstration begins a turn
//
// Messages between two turns are new to the model and go into the next turn's start. Messages after the last turn are
// added to the run outside any turn. A result that reaches the model only in a later turn is recorded with its call,
// under its own time, and the later message refers to it.
//
// Promises: messages come back JSON-equal and in order; the text of arguments comes back unchanged; null, absent and
// empty stay distinct. All other data (signatures, ids, shapes, the members of a line such as toolUseResult, the steps
// of a trajectory) is in source{} of its message or part, under the name of the format. Deleting every source{} leaves
// texts, calls and results unchanged. Nothing is invented: a null finish reason stays null, a call without a result
// stays open, a file without a trajectory gets none.
//
// Repetition: an existing run is compared with the transcript ([Compare], [Replay]), and only missing events are
// published: after its last event following a crash, and after a takeover with reason reopen if the transcript grew. If
// an import ended inside an answer, the rest of the answer is the next turn. A call without a result is begun and stays
// open; a later transcript with the result settles it.
//
// Failure: unreadable input is refused by name (file, line, JSON path) and listed in the [Report]; the rest is read. A
// session with refused lines ends as failed. Lone surrogates and invalid UTF-8 become U+FFFD and are counted. Lines
// that are not messages are counted by type, members that are not kept by name. Memory is bounded by one run.
package transcript
