// Package transcript reads transcripts of other agents, and writes them into a fleet as runs.
//
// It owns the readers of three formats. [Read] recognises them by content:
//
//   - openai-chat: conversations in the form of Chat Completions. A file has one conversation per line, one document, an
//     array of conversations, or the messages of one conversation.
//   - claude-code: a session of JSON lines, with the files of its sub-agents in the folder NAME/subagents. Lines that
//     share message.id are one answer. Each sub-agent is a run of its own, with the session as parent.
//   - swe-agent: a trajectory with history, trajectory and info. Without function calling, the action is the call.
//
// An answer of the model, with its calls and their results, is a turn. Messages between two answers are new to the model
// in the next turn. [Run.Write] publishes a run as an executor does, one event after another.
//
// It promises that texts, reasoning, arguments and results come in order and unchanged. It keeps no other members: a
// run cannot be turned into its file again. Images and other blocks become text, as JSON. A call without a result is
// abandoned when its turn ends, and a result without a call becomes text.
//
// On failure, [Read] names the file and returns no run. A run that exists already is an error, and stays as it is.
package transcript
