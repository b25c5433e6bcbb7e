#!/bin/sh
# Fetches packages (NAME@VERSION …) by npm into the directory $1, and prints the path of $2 in its node_modules: a path, or the name of a program that lies anywhere below. Nothing where npm or the network is missing.
set -eu
dir=$1 file=$2
shift 2
if [ ! -e "$dir/done" ]; then
	command -v npm >/dev/null 2>&1 || exit 0
	mkdir -p "$dir"
	echo '{"private":true}' >"$dir/package.json"
	npm install --silent --no-audit --no-fund --ignore-scripts --no-save --prefix "$dir" "$@" >/dev/null 2>&1 || exit 0
	touch "$dir/done"
fi
cd "$dir"
case $file in
'' | */*) echo "$PWD/node_modules/$file" ;;
*) find "$PWD/node_modules" -name "$file" -type f -size +1M | head -n 1 ;; # not its script of some lines
esac
