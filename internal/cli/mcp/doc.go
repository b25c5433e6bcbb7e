// Package mcp is the command mcp: a recording proxy between an MCP client and an MCP server.
//
// It owns the command's flags; internal/adapter/mcp does the work.
package mcp
