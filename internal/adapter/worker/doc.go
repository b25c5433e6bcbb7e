// Package worker runs an agent that is a program in any language, as its child: an executor whose model, tools or whole
// loop are answered by lines of JSON on the child's standard input and output. docs/any-language.md has the protocol.
//
// It owns the lines, the programs and their restarts. The rules of runs are those of [publisher.Loop] and
// [session.Session]. The pipe is the program's life: when it ends, nothing is recorded about what the program was doing,
// its runs are given back, and it is started again.
package worker
