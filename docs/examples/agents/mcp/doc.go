// Command mcp is an agent with the tools of an MCP server, which it starts: the command after its own name. It uses the
// Chat Completions API, which many model servers offer.
package main
