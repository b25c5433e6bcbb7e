// Package agents has agents with the official Go clients of Anthropic and OpenAI, and with tools of an MCP server: a program in each folder.
//
// It owns their tests, which run them as processes against fakes of the APIs, kill them, and see that the next process comes to the same
// conversation. It is a module of its own, so that the clients are no dependencies of Waymark. "make agents" runs the tests.
package agents
