#!/bin/sh
# Makes what the tests of tools/dist install, in DIR: a Debian system, created once, and three releases: distcheck.sh DIR PROGRAM FLAG...
set -eu
dir=$1
shift
mkdir -p "$dir"
if [ ! -e "$dir/root/made" ]; then
	rm -rf "$dir/root"
	debootstrap --variant=minbase --include=rpm,cpio,procps,systemd,systemd-sysv,dbus bookworm "$dir/root" >"$dir/debootstrap.log"
	touch "$dir/root/made"
fi
"$@" -version 0.1.0 -platforms linux/amd64,linux/arm64 -out "$dir/0.1.0"
"$@" -version 0.1.1 -platforms linux/amd64 -out "$dir/0.1.1"
"$@" -version 0.1.1 -platforms linux/amd64 -out "$dir/again"
