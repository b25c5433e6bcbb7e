// Package transfer has the commands import and export, for transcripts.
//
// # What it owns
//
// Which files are transcripts and which run each becomes, the result for each run, and the files of an export. The
// formats are defined in internal/transcript. It knows no other command.
package transfer
