// Package main reads a run with a NATS client and nothing else: its request is answered with the conversation.
//
// It owns nothing but its connection; on failure it says why and exits with 1.
package main
