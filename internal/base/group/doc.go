// Package group starts programs that end with this process, also when it is killed.
//
// # What it owns
//
// The process group of a program: the program and what it starts. On systems without process groups it is the program
// alone, which outlives a killed process.
package group
