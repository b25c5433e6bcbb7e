// Package transcriptcheck proves an import or an export against its source, with independent code.
//
// It walks the source file as plain JSON and knows nothing of the parsers, the fold or the exports of package
// transcript, so it finds mistakes that they share. It deliberately shares no code with them, and uses the standard
// library's JSON reader where they use another.
//
// [Read] returns the expected conversations of a file; [Conversation.Export] compares an export's messages with the
// source's, [Conversation.State] the calls, results and token counts of a recovered state. Both return the first
// difference with its path. Lines that are no messages are counted by type, unreadable lines by number: a skipped
// line is an unproven one.
package transcriptcheck
