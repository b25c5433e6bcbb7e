#!/bin/sh
# Measures every figure of docs/performance.md, and writes docs/performance/*.csv and the page's tables: page.sh BIN. $PAGE_ROUNDS of whole
# turns of all systems, alternating; $PEERS_STORE is the disk of all. $PAGE_QUICK only shows that everything works: then the tables are
# written to .bin/page.
set -eu
[ -z "${PAGE_QUICK:-}" ] || : "${PAGE_ROUNDS:=1}"
: "${PAGE_ROUNDS:=3}"
bin=$1 out=$1/bench-page.jsonl docs=docs/performance begin=$(date +%s)
[ ! -e "$out" ] || mv -f "$out" "$out.before" # an interrupted run has hours in it: "bench report" reads it
[ -z "${PAGE_QUICK:-}" ] || { export PEERS_QUICK=1; docs=$bin/page; }
mkdir -p "$docs"
also=temporal # in the first round only, for it is slow
say() { echo "$(($(date +%s) - begin)) s: $*" >&2; }
waymark() { # shellcheck disable=SC2086
	say "$@"
	"$bin/bench" run --quiet --out "$out" ${PEERS_STORE:+--store "$PEERS_STORE"} ${PAGE_QUICK:+--quick} "$@" >/dev/null
}
apart="--server process --daemons 1"
for round in $(seq "$PAGE_ROUNDS"); do
	say "round $round of $PAGE_ROUNDS"
	for runs_executors in "1 1" "16 1" "64 1" "16 16" "64 64" "256 256"; do
		# shellcheck disable=SC2086
		set -- $runs_executors
		# shellcheck disable=SC2086
		waymark turn $apart --rounds 1 --runs "$1" --executors "$2"
	done
	# shellcheck disable=SC2086
	node "$bin/peers/main.mjs" --turn restate restate_go dbos $also >>"$out"
	also=
done
# shellcheck disable=SC2086
{
	waymark boundary --runs 1
	waymark boundary $apart
	waymark boundary --runs 1 --server cluster
	waymark fold --rounds 3
	waymark lag $apart
	waymark recovery --rounds 3
}
say "done"
"$bin/bench" report --csv "$docs" "$out"
[ -n "${PAGE_QUICK:-}" ] || go test ./internal/lint -run TestFigures_PageTables -update
