# Versions of the tools that "make check" fetches for itself, into .bin. Go libraries are in go.mod.
GOLANGCI_LINT_VERSION := v2.15.0
ASYNCAPI_PARSER_VERSION := 3.6.3
