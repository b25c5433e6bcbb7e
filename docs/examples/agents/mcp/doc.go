// Command mcp is an agent whose tools are those of an MCP server, which it starts: the command that follows its name. The Chat Completions
// API is asked, which many servers of models offer.
package main
