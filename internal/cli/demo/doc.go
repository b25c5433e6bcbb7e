// Package demo is the command demo: it kills agents at work from outside, and proves what Waymark made of it.
//
// # What it owns
//
// One scene of processes of this program in a temporary directory: a daemon with its server, and executors
// ([ExecutorCmd]) of three agents. The scene kills an executor and the server with SIGKILL. Its proof compares the log with
// what the executors told outside of Waymark, and with the files of their tools. It imports no other command: it starts
// the daemon as a process.
package demo
