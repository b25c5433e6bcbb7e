// Package transcriptgen writes transcripts that nobody ever ran: every shape that a format allows, chosen by a seed,
// and as big as asked. Tests and measurements use it where the project's own small transcripts are too few
// or too small. The same spec always gives the same bytes.
//
// On failure, which can only be a writer's, [Write] returns the writer's error and the output is cut off.
package transcriptgen
