// Package send sends the events of an executor.
//
// It owns one try to append: its timeout, the server's permission errors, which arrive separately from its answers, and
// a hook with which tests lose messages and answers. It does not know runs: package publisher decides what follows an
// answer.
//
// On failure the outcome says whether the message may be stored.
package send
