// Package transcript reads the transcripts that agents leave behind, replays them as the executor that
// made them would have published them, and gives them back.
//
// It owns
//
//   - the parsers of three formats into one neutral model ([Open], [Run]): chat-completions conversations
//     ([OpenAIChat]), sessions of a coding agent with sub-agents and compaction ([ClaudeCode]),
//     trajectories of a software-engineering agent ([SWEAgent]);
//   - the plan of a run: what is published in which order, described once for [Events] (pure) and for
//     [Replay] (the publisher SDK), and its comparison with a run that is there;
//   - the exports back into each format, and as CloudEvents ([Export], [ExportCloudEvents]).
//
// How a transcript is cut into turns:
//
//	openai-chat  each assistant message begins a turn; the tool messages after it belong to it
//	claude-code  a turn is the lines that share message.id, early results included; its lines of the assistant are one answer
//	swe-agent    each assistant entry of history that is no demonstration begins a turn
//
// What stands between two turns is new to the model and goes into the next turn's start; what stands after
// the last one is added to the run outside any turn. A result that reaches the model only in a later turn
// is recorded with its call, under its own time, and the later message refers to it.
//
// Promises: messages come back JSON-equal and in order; the text of arguments comes back to the letter;
// null, absent and empty stay apart. Whatever is no text, call or result (signatures, ids, shapes, the members of a
// line such as toolUseResult, the steps of a trajectory) is in source{} of its message or part, under the name of the
// format, and deleting every source{} leaves texts, calls and results as they were. Nothing is invented: a finish
// reason that is null stays null, a call without a result stays open, a file without a trajectory gets none.
//
// Repetition: a run that is there is compared with the transcript ([Compare], [Replay]), and only what it lacks is published:
// behind its last event after a crash, and behind a takeover with reason reopen after the transcript grew. Where an import ended
// inside an answer, the rest of the answer is the next turn. A call without a result is begun and stays open; the transcript that has the
// result settles it.
//
// Failure: what cannot be read is refused by name (file, line, JSON path) and listed in the [Report]; the
// rest is read; a session of which lines were refused ends as failed. Lone surrogates and invalid UTF-8 become U+FFFD
// and are counted. Lines that are no messages are counted by type, members that are not kept by name. Memory is bounded
// by one run.
package transcript
