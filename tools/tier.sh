#!/bin/sh
# Runs the steps of a tier: tier.sh TIER STEP... It goes on when a step fails. The step $BACKGROUND runs while the others do: its tests mostly
# wait. At its end it says what was left out, what could not be tested here, how long each step took, what failed, and how many tests
# ran. $LATER says what runs the rest.
set -eu
tier=$1
shift
records=$PWD/.bin/records/$tier
rm -rf "$records"
mkdir -p "$records"

run() {
	begin=$(date +%s)
	"$MAKE" --no-print-directory "$1" RECORDS="$records" || echo "$1" >>"$records/failed"
	echo "$1 $(($(date +%s) - begin))s" >>"$records/took"
}
background=${BACKGROUND:-}
if [ -n "$background" ]; then
	echo "== $background begins, and runs while the others do: its output comes last"
	run "$background" >"$records/$background.log" 2>&1 &
	trap 'trap "" TERM; kill 0; exit 130' INT TERM # a shell's background processes do not hear Ctrl-C
fi
for step in "$@"; do
	[ "$step" != "$background" ] || continue
	echo "== $step"
	run "$step"
done
if [ -n "$background" ]; then
	wait
	echo "== $background"
	cat "$records/$background.log"
fi
failed=$(paste -sd' ' "$records/failed" 2>/dev/null || true)
set -- "$records"/*.json
if [ -e "$1" ]; then
	sh tools/left.sh "$@"
	echo "== the slowest tests"
	cat "$@" | "$GOTESTSUM" tool slowest --threshold 5s | head -n 12
	echo "== all tests of make $tier"
	"$GOTESTSUM" --format none --hide-summary skipped --raw-command -- cat "$@" || true
fi
[ ! -e "$records/not-tested" ] || sed 's/^/== /' "$records/not-tested"
echo "== took: $(paste -sd, "$records/took" | sed 's/,/, /g')"
echo "== not in make $tier: $LATER"
if [ -n "$failed" ]; then
	echo "== make $tier FAILED: $failed" >&2
	exit 1
fi
echo "== make $tier passed"
