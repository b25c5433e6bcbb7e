#!/bin/sh
# The image as a container runs it, in namespaces of its own: image.sh OLD NEW. OLD and NEW are the unpacked images of two versions.
# The root is read-only and no right is left; the volume is all that both have in common.
set -eu
old=$1 new=$2
mount --make-rprivate /
ip link set lo up
mkdir "$old.volume"
chown 65532:65532 "$old.volume"
chmod 700 "$old.volume"

enter() { # enter ROOT COMMAND...
	root=$1
	shift
	(exec chroot --userspec=65532:65532 --groups= "$root" /usr/local/bin/waymark "$@")
}
begin() {
	mount --bind "$1" "$1"
	mount -t proc proc "$1/proc" 2>/dev/null || true
	mount --bind "$old.volume" "$1/var/lib/waymark"
	mount -o remount,bind,ro "$1"
	! touch "$1/x" 2>/dev/null || { echo "the root can be written"; exit 1; }
	# shellcheck disable=SC2086
	(exec chroot --userspec=65532:65532 --groups= "$1" /usr/local/bin/waymark $IMAGE_CMD) >"$1.log" 2>&1 &
	pid=$!
	tries=300
	until enter "$1" fleet >/dev/null 2>&1; do
		tries=$((tries - 1))
		[ "$tries" -gt 0 ] || { cat "$1.log"; exit 1; }
		sleep 0.2
	done
}
export WAYMARK_STATE_DIR=/var/lib/waymark
begin "$old"
enter "$old" version
for run in handed-in second; do
	enter "$old" start coder --id $run --task "Mend it." --quiet
	enter "$old" signal $run note --text "The sum is wrong." --quiet
done
enter "$old" verify --all
kill -TERM "$pid"
wait "$pid"
begin "$new"
enter "$new" version
enter "$new" runs get handed-in
enter "$new" verify --all
kill -TERM "$pid"
wait "$pid"
echo "== passed: image"
