// Package send sends the events of an executor.
//
// It owns one try to append: its time, the refusals of the server, which come apart from its answers, and where tests lose messages and
// answers. It does not know runs: what follows an answer is decided by package publisher.
//
// On failure the outcome says whether the message may be stored.
package send
