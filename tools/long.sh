#!/bin/sh
# Prints the arguments of go test for the long tests: those that ask testing.Short, in whole or in part. internal/lint keeps such calls
# in the tests themselves. The longest package begins first.
set -eu
longest=./internal/harness/nemesis
list=$(git ls-files --cached --others --exclude-standard -- '*_test.go' ':!tools' ':!docs/examples/agents' ':!internal/lint' | xargs awk '
	/^func (Test|Fuzz)/ { name = $2; sub(/\(.*/, "", name) }
	/^}/ { name = "" }
	/testing\.Short\(\)/ && name != "" && name != "TestMain" { dir = FILENAME; sub(/\/[^\/]*$/, "", dir); print "./" dir, name }' | sort -u)
echo "-run ^($(echo "$list" | cut -d' ' -f2 | sort -u | paste -sd'|' -))\$ $longest $(echo "$list" | cut -d' ' -f1 | sort -u | grep -vxF "$longest" | paste -sd' ' -)"
