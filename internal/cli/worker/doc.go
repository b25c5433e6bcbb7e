// Package worker is the command worker: an executor for an agent that is a program in any language.
//
// It owns the command's flags; internal/adapter/worker does the work.
package worker
