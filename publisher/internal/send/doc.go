// Package send has the hooks with which tests of agents lose the messages and answers of an executor, and replay the
// results of its tools.
package send
