#!/bin/sh
# Runs the steps of a tier: tier.sh TIER STEP... It goes on when a step fails. At its end it says what was left out, what could not be
# tested here, how long each step took, what failed, and how many tests ran. $LATER says what runs the rest.
set -eu
tier=$1
shift
records=$PWD/.bin/records/$tier
rm -rf "$records"
mkdir -p "$records"

failed= times=
for step in "$@"; do
	echo "== $step"
	begin=$(date +%s)
	"$MAKE" --no-print-directory "$step" RECORDS="$records" || failed="$failed $step"
	times="$times $step $(($(date +%s) - begin))s,"
done
set -- "$records"/*.json
if [ -e "$1" ]; then
	sh tools/left.sh "$@"
	echo "== the slowest tests"
	cat "$@" | "$GOTESTSUM" tool slowest --threshold 5s | head -n 12
	echo "== all tests of make $tier"
	"$GOTESTSUM" --format none --hide-summary skipped --raw-command -- cat "$@" || true
fi
[ ! -e "$records/not-tested" ] || sed 's/^/== /' "$records/not-tested"
echo "== took:${times%,}"
echo "== not in make $tier: $LATER"
if [ -n "$failed" ]; then
	echo "$failed" >"$records/failed"
	echo "== make $tier FAILED:$failed" >&2
	exit 1
fi
echo "== make $tier passed"
