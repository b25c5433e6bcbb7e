#!/bin/sh
# Validates the AsyncAPI document with the reference parser, fetched by npm into the directory $1, version $2.
set -eu
dir=$1 version=$2

files=$(git ls-files --cached --others --exclude-standard -- 'schema/*asyncapi*.json' 'schema/*asyncapi*.yaml')
if [ -z "$files" ]; then
	echo "asyncapi: there is no document below schema/: make generate writes it" >&2
	exit 1
fi
if ! command -v npm >/dev/null 2>&1; then
	echo "asyncapi: SKIPPED, npm is not installed: $files was not validated"
	exit 0
fi
if [ ! -d "$dir/node_modules/@asyncapi/parser" ]; then
	mkdir -p "$dir"
	echo '{"private":true}' >"$dir/package.json"
	npm install --silent --no-audit --no-fund --ignore-scripts --no-save --prefix "$dir" "@asyncapi/parser@$version" || {
		rm -rf "$dir"
		echo "asyncapi: SKIPPED, npm cannot fetch @asyncapi/parser@$version: $files was not validated"
		exit 0
	}
fi
for file in $files; do
	node tools/asyncapi.cjs "$dir" "$file"
done
