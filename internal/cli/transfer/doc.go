// Package transfer is the commands that bring runs in and out: import and export, of transcripts and archives.
//
// # What it owns
//
// Which files are transcripts and which run each becomes, what came of each run, and the files that an export writes. The formats are those
// of internal/transcript and internal/archive. It knows no other command.
package transfer
