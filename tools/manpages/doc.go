// Command manpages writes the manual page of the command waymark, made of its reference, which is made of its grammar.
//
//	manpages docs/cli.md waymark.1
//
// It is a program of its own, so that the binary does not link the library that makes pages.
package main
