#!/bin/sh
# Runs the steps of a tier: tier.sh TIER STEP... It goes on when a step fails, and says at its end what failed, what each step took, and
# what the tier left out. $LEFT_OUT are steps of other tiers.
set -eu
tier=$1
shift
records=.bin/tiers/$tier
rm -rf "$records"
mkdir -p "$records"

failed= times=
for step in "$@"; do
	echo "== $step"
	begin=$(date +%s)
	"${MAKE:-make}" --no-print-directory "$step" RECORDS="$records" || failed="$failed $step"
	times="$times $step $(($(date +%s) - begin))s,"
done
go run ./tools/tiers left -dir "$records"
echo "== left out; to run each: make STEP, where STEP is one of: $LEFT_OUT"
echo "== took:${times%,}"
if [ -n "$failed" ]; then
	echo "$failed" >"$records/failed"
	echo "== make $tier FAILED:$failed" >&2
	exit 1
fi
echo "== make $tier passed"
