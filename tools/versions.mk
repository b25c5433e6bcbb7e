# Versions of the tools that "make check" fetches for itself, into .bin. Go libraries are in go.mod.
GOLANGCI_LINT_VERSION := v2.15.0
AXE_CORE_VERSION := 4.14.1
CLAUDE_CODE_VERSION := 2.1.332
CODEX_VERSION := 0.171.0
LANGGRAPH_VERSION := 1.7.3
LANGCHAIN_CORE_VERSION := 1.4.0
OPENAI_AGENTS_VERSION := 0.20.0
# The last major version that runs on Node 20.
AI_SDK_VERSION := 6.0.326
MCP_CONFORMANCE_VERSION := 0.1.16
MCP_EVERYTHING_VERSION := 2026.8.31
GOVULNCHECK_VERSION := v1.8.0
# The last version that builds as a module by itself.
TEMPORAL_CLI_VERSION := v1.5.1
# As tools/pinned/go.mod has them.
CYCLONEDX_GOMOD_VERSION := v1.10.0
GOTESTSUM_VERSION := v1.13.0
# The version that is worked on: what "make dist" builds from a commit without a tag is a -dev of it. The CHANGELOG has the same.
NEXT_VERSION := 0.1.0
