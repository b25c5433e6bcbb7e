// Package lineage tells where a run comes from and what came of it: parents, children, continuations, forks, hand-offs.
//
// It asks the daemon for the way up and, level by level, for what is below each run on it, and puts each run below one other. What is shown is
// bounded; which runs belong together comes from checkpoints, which may be a moment old. It draws nothing: waymark tree and the pages do.
package lineage
