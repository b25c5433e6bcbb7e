// Package lineage builds the tree of related runs: parents, children, continuations, forks, hand-offs.
//
// It asks the daemon for the ancestors of a run and then, level by level, for the descendants of each of them. It puts each run below one other.
// The size of the tree is bounded. The relations come from checkpoints, which may be a moment old. Only waymark tree and the pages draw trees.
package lineage
