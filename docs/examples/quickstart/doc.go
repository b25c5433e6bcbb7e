// Package main is the agent of the README's quickstart: a scripted model and a tool that appends to a file. It goes on where its run
// stands, also after kill -9.
//
// It owns nothing but its handle; on failure it panics, and its run goes on when it is started again.
package main
