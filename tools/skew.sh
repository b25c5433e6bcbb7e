#!/bin/sh
# Runs daemons and executors of this version and of an older commit on one fleet: skew.sh COMMIT.
set -eu
[ -n "$1" ] || { echo "skew: say which version: make skew OLDER=COMMIT" >&2; exit 2; }
older=$(git rev-parse --verify "$1^{commit}")
dir=$PWD/.bin/skew
rm -rf "$dir"
mkdir -p "$dir/source" "$dir/$older"
git archive "$older" | tar -x -C "$dir/source"
go build -C "$dir/source" -o "$dir/$older/" ./cmd/waymark
go test -C "$dir/source" -c -o "$dir/$older/nemesis.test" ./internal/harness/nemesis
WAYMARK_SKEW_OLDER="$dir/$older" go test -count=1 -timeout 15m -v -run TestVersions ./internal/harness/nemesis
