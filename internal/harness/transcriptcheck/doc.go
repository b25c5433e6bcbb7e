// Package transcriptcheck proves an import or an export against its source, with code of its own.
//
// It walks the source file as plain JSON and knows nothing of the parsers, the fold or the exports of
// package transcript: what they get wrong alike, it still sees. It shares no code with them on purpose, and
// uses the standard library's JSON reader where they use another.
//
// [Read] gives the conversations that a file must become; [Conversation.Export] compares an export's
// messages with the source's, [Conversation.State] the calls, results and token counts of a recovered
// state. Both return the first difference with its path. Lines that are no messages are counted by type,
// lines that cannot be read by number: a skipped line is an unproven one.
package transcriptcheck
