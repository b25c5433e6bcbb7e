#!/bin/sh
# Prints what tests left out, by the records of gotestsum: left.sh RECORD... A skip gives its reason; a test that runs a part of its work
# logs what it leaves out. Both begin with "short: " (left out by -short) or "sample: " (the whole takes long), or say what is missing: "NOT TESTED: " begins such a line of a test that passes.
set -eu
awk '
	function field(name) {
		if (!match($0, "\"" name "\":\"([^\"\\\\]|\\\\.)*\"")) return ""
		return substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 5)
	}
	{ pkg = field("Package"); test = field("Test"); action = field("Action") }
	test != "" && action == "output" && match($0, /_test\.go:[0-9]+: /) {
		text = substr($0, RSTART + RLENGTH)
		sub(/(\\n)?"}$/, "", text); gsub(/\\"/, "\"", text); gsub(/\\t/, " ", text)
		said[pkg, test] = text
		if (text ~ /^(short|sample|NOT TESTED): /) left[pkg, test] = text
	}
	test != "" && action == "skip" { left[pkg, test] = (pkg, test) in said ? said[pkg, test] : "no reason given" }
	END {
		for (key in left) {
			split(key, at, SUBSEP)
			sub(/^github\.com\/waymarkio\/waymark\//, "", at[1])
			line = at[1] SUBSEP left[key]
			n[line]++
			test_of[line] = at[2]
		}
		for (line in n) {
			split(line, at, SUBSEP)
			kind = at[2] ~ /^short: / ? 1 : at[2] ~ /^sample: / ? 2 : 3
			sub(/^(short|sample): /, "", at[2])
			print kind "\t" at[1] "." (n[line] == 1 ? test_of[line] : n[line] " tests") ": " at[2]
		}
	}' "$@" | LC_ALL=C sort | awk -F '\t' '
	BEGIN { title[1] = "left out, run by make check-full:"; title[2] = "left out, run by make nightly:"; title[3] = "NOT TESTED here:" }
	$1 != kind { kind = $1; print "== " title[kind] }
	{ print "  " $2 }'
