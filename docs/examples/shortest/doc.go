// Package main is the shortest executor: one agent with one tool. It claims runs of its agent until it is stopped.
//
// It owns only its handle; on failure it prints the error and exits with 1, and other executors continue its runs.
package main
