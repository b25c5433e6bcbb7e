// Package agents has agents with the official Go clients of Anthropic and OpenAI, and with tools of an MCP server: one
// program per directory.
//
// It owns their tests, which run them as processes against fakes of the APIs, kill them, and check that the next
// process reaches the same conversation. It is a module of its own, so that the clients are not dependencies of
// Waymark. "make agents" runs the tests.
package agents
