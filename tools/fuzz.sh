#!/bin/sh
# Runs every fuzz target of the module for FUZZTIME, one after another. Each package is compiled once for all its targets.
set -eu
time=${FUZZTIME:-5s}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
corpus=$(go env GOCACHE)/fuzz

fuzz() { # folder, target
	# By default a minute goes into making each new input smaller, during which nothing is tried.
	(cd "$1" && "$work/test" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$time" -test.fuzzminimizetime 1s \
		-test.fuzzcachedir "$corpus/$(go list .)") >"$work/log" 2>&1
}

# Only packages that have fuzz targets are worth compiling; the test binary then says which they are.
dirs=$(git grep -l --untracked -E '^func Fuzz[A-Z]' -- '*_test.go' | sed 's,/[^/]*$,,' | sort -u)
if [ -z "$dirs" ]; then
	echo "fuzz: the module has no fuzz targets yet"
	exit 0
fi
count=0
for dir in $dirs; do
	go test -c -fuzz . -o "$work/test" "./$dir"
	targets=$(cd "$dir" && "$work/test" -test.list '^Fuzz') || { echo "$targets" >&2; exit 1; }
	for target in $(echo "$targets" | grep '^Fuzz'); do
		echo "fuzz: ./$dir $target for $time"
		# When the time ends while a worker is busy, the test may report that as a failure, without an
		# input. That is the tool's, not the target's: once more.
		if ! fuzz "./$dir" "$target"; then
			if grep -q 'context deadline exceeded' "$work/log" && ! grep -q 'Failing input written' "$work/log" && fuzz "./$dir" "$target"; then
				continue
			fi
			cat "$work/log" >&2
			echo "fuzz: $target failed: add the input it wrote to ./$dir/testdata/fuzz to git and mend the code" >&2
			exit 1
		fi
		count=$((count + 1))
	done
done
echo "fuzz: $count targets passed"
