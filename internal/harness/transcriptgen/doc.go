// Package transcriptgen writes generated transcripts: every shape that a format allows, chosen by a seed, and of any
// size. Tests and measurements use it if the project's own small transcripts are too few or too small. The same spec
// always gives the same bytes.
//
// On failure, which can only be a writer's, [Write] returns the writer's error and the output is truncated.
package transcriptgen
