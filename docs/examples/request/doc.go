// Package main reads a run with only a NATS client: its request is answered with the conversation.
//
// It owns only its connection; on failure it prints the error and exits with 1.
package main
