#!/bin/sh
# Runs every fuzz target of the module for FUZZTIME, one after another.
set -eu
time=${FUZZTIME:-5s}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

fuzz() { # package, target
	# By default a minute goes into making each new input smaller, during which nothing is tried.
	go test -run '^$' -fuzz "^$2\$" -fuzztime "$time" -fuzzminimizetime 1s "$1" >"$log" 2>&1
}

# Only packages that have fuzz targets are worth compiling; go test then says which they are.
dirs=$(git grep -l --untracked -E '^func Fuzz[A-Z]' -- '*_test.go' | sed 's,/[^/]*$,,' | sort -u)
if [ -z "$dirs" ]; then
	echo "fuzz: the module has no fuzz targets yet"
	exit 0
fi
count=0
for dir in $dirs; do
	targets=$(go test -list '^Fuzz' "./$dir") || { echo "$targets" >&2; exit 1; }
	for target in $(echo "$targets" | grep '^Fuzz'); do
		echo "fuzz: ./$dir $target for $time"
		# When the time ends while a worker is busy, go test may report that as a failure, without an
		# input. That is the tool's, not the target's: once more.
		if ! fuzz "./$dir" "$target"; then
			if grep -q 'context deadline exceeded' "$log" && ! grep -q 'Failing input written' "$log" && fuzz "./$dir" "$target"; then
				continue
			fi
			cat "$log" >&2
			echo "fuzz: $target failed: add the input it wrote to ./$dir/testdata/fuzz to git and mend the code" >&2
			exit 1
		fi
		count=$((count + 1))
	done
done
echo "fuzz: $count targets passed"
