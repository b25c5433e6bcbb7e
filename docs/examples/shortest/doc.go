// Package main is the shortest executor: one agent with one tool. It claims runs of its agent until it is told to stop.
//
// It owns nothing but its handle; on failure it says why and exits with 1, and its runs go on elsewhere.
package main
