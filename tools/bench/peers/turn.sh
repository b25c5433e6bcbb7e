#!/bin/sh
# Measures whole turns: Waymark's and then the other systems', round after round, and prints the medians: turn.sh BIN. $TURN_ROUNDS;
# $TURN_RUNS of one process, and $TURN_EXECUTORS that have an executor process each. $PEERS names other systems than Restate, $PEERS_STORE the
# disk of all, $PEERS_QUICK only shows that everything works.
set -eu
bin=$1 out=bench-turn.jsonl
rm -f "$out"
waymark() { # shellcheck disable=SC2086
	"$bin/bench" run turn --quiet --rounds 1 --out "$out" ${PEERS_STORE:+--store "$PEERS_STORE"} ${PEERS_QUICK:+--quick} ${BENCHFLAGS:-} "$@"
}
for round in $(seq "${TURN_ROUNDS:=5}"); do
	echo "round $round of $TURN_ROUNDS"
	for runs in ${TURN_RUNS:=1 16 64}; do waymark --runs "$runs"; done
	for runs in ${TURN_EXECUTORS:=64}; do waymark --runs "$runs" --executors "$runs"; done
	# shellcheck disable=SC2086
	PEERS_RUNS="$TURN_RUNS" node "$bin/peers/main.mjs" --turn ${PEERS:-restate} >>"$out"
done
"$bin/bench" report "$out"
