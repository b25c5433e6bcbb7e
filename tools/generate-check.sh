#!/bin/sh
# Runs go generate and fails when that changes a file. It compares the files before and after, not with the last
# commit, so that it can be used while other work is going on.
set -eu

state() {
	git ls-files --cached --others --exclude-standard -z | sort -zu | xargs -0 cksum 2>/dev/null || true
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
state >"$work/before"
[ -s "$work/before" ] || { echo "generate-check: git lists no files: run it in a git checkout" >&2; exit 1; }
go generate ./...
state >"$work/after"
if ! diff "$work/before" "$work/after" >"$work/diff"; then
	echo "generate-check: these files were out of date; commit what \"make generate\" has written:" >&2
	sed -n 's/^[<>] [0-9]* [0-9]* /  /p' "$work/diff" | sort -u >&2
	exit 1
fi
