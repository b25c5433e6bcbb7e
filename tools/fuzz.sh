#!/bin/sh
# Runs every fuzz target of the repository, or of the folders in $FUZZDIRS, for $FUZZTIME, as many side by side as there are processors, each
# with one worker. Each package is compiled once for all its targets.
set -eu
time=${FUZZTIME:-5s}

if [ "${1:-}" = one ]; then # one WORK PACKAGE TARGET, which the end of this script starts
	work=$2 dir=$3 target=$4
	binary=$work/$(echo "$dir" | tr / _) log=$work/$target.log
	fuzz() {
		# By default a minute goes into making each new input smaller, during which nothing is tried.
		(cd "$dir" && "$binary" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.fuzzminimizetime 1s -test.parallel 1 \
			-test.fuzzcachedir "$FUZZ_CORPUS/$(go list .)") >"$log" 2>&1
	}
	# When the time ends while a worker is busy, the test may report that as a failure, without an input. That is the tool's, not the
	# target's: once more.
	if ! fuzz && { ! grep -q 'context deadline exceeded' "$log" || grep -q 'Failing input written' "$log" || ! fuzz; }; then
		cat "$log" >&2
		echo "fuzz: $target failed: add the input it wrote to $dir/testdata/fuzz to git and mend the code" >&2
		exit 255 # begin no other
	fi
	echo "fuzz: $dir $target for $time"
	exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
FUZZ_CORPUS=$(go env GOCACHE)/fuzz
export FUZZ_CORPUS

# Only packages that have fuzz targets are worth compiling; the test binary then says which they are.
dirs=$(git grep -l --untracked -E '^func Fuzz[A-Z]' -- '*_test.go' | sed 's,/[^/]*$,,' | sort -u)
if [ -n "${FUZZDIRS:-}" ]; then # a space-separated sample: to compile all takes longer than to try them
	left=$(echo "$dirs" | grep -vxF "$(echo "$FUZZDIRS" | tr ' ' '\n')" | paste -sd' ' -)
	echo "fuzz: left out, run by make fuzz FULL=1: $left"
	dirs=$FUZZDIRS
fi
if [ -z "$dirs" ]; then
	echo "fuzz: the module has no fuzz targets yet"
	exit 0
fi
for dir in $dirs; do
	binary=$work/$(echo "./$dir" | tr / _)
	(cd "$dir" && go test -c -fuzz . -ldflags="-s -w" -o "$binary" .) # it may be of another module
	targets=$(cd "$dir" && "$binary" -test.list '^Fuzz') || { echo "$targets" >&2; exit 1; }
	echo "$targets" | sed -n "s,^Fuzz,$work ./$dir &,p" >>"$work/targets"
done
lanes=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
xargs -n 3 -P "$lanes" sh "$0" one <"$work/targets"
echo "fuzz: $(wc -l <"$work/targets") targets passed"
