#!/bin/sh
# The life of a package, as root of a machine that may be thrown away: lifecycle.sh deb|rpm systemd|plain. /pkg has the packages, in a folder
# for each version. plain has no systemd: the daemon is started as its unit says.
set -eu
kind=$1 mode=$2
unit=/usr/lib/systemd/system/waymark.service
state=/var/lib/waymark
settings=/etc/waymark/waymark.env

say() { echo "== $*"; }
die() {
	echo "FAILED: $*"
	case $mode in
	systemd) journalctl --no-pager --lines=40 --unit=waymark ;;
	plain) tail -n 20 /tmp/daemon.log ;;
	esac
	exit 1
}
until_true() { # until_true WHAT COMMAND...: asks for a minute
	what=$1 tries=300
	shift
	until "$@" >/tmp/asked 2>&1; do
		tries=$((tries - 1))
		[ "$tries" -gt 0 ] || { cat /tmp/asked; die "$what"; }
		sleep 0.2
	done
}
as_daemon() { exec setpriv --reuid=waymark --regid=waymark --clear-groups env -i PATH=/usr/bin:/bin WAYMARK_STATE_DIR=$state "$@"; }
waymark() { (as_daemon /usr/bin/waymark "$@"); }

install_version() {
	case $kind in
	deb) dpkg --install /pkg/"$1"/*_amd64.deb ;;
	rpm) rpm --upgrade --nodeps /pkg/"$1"/*.x86_64.rpm ;; # Debian's packages are not in the database of rpm
	esac
}
remove() {
	case $kind in
	deb) dpkg --remove waymark ;;
	rpm) rpm --erase waymark ;;
	esac
}
daemon_pid() {
	case $mode in
	systemd) systemctl show --property=MainPID --value waymark ;;
	plain) echo "$pid" ;;
	esac
}
start() {
	case $mode in
	systemd) systemctl enable --now waymark ;;
	plain)
		# shellcheck disable=SC2046
		as_daemon env $(sed -n '/^[A-Z]/p' $settings) $(sed -n 's/^ExecStart=//p' $unit) >>/tmp/daemon.log 2>&1 &
		pid=$!
		;;
	esac
	until_true "the daemon does not answer" waymark fleet
}
stop_plain() {
	kill -TERM "$pid"
	wait "$pid" || die "the daemon did not end well: $?"
}
new_process() { # new_process OLD: the daemon runs, as another process than OLD, from the file that is installed now
	now=$(daemon_pid)
	[ "$now" != 0 ] && [ "$now" != "$1" ] && [ "$(readlink /proc/"$now"/exe)" = /usr/bin/waymark ]
}
runs() { waymark runs ls --json | grep -o '"run": *"[^"]*"' | sort -u; }

say "the packages for the other processor have the same files"
case $kind in
deb)
	listing() { dpkg-deb --contents "$1" | awk '{print $1, $2, $6}'; }
	[ "$(dpkg-deb --field /pkg/0.1.0/*_arm64.deb Architecture)" = arm64 ] || die "architecture"
	[ "$(listing /pkg/0.1.0/*_arm64.deb)" = "$(listing /pkg/0.1.0/*_amd64.deb)" ] || die "files of the packages differ"
	machine=$(dpkg-deb --fsys-tarfile /pkg/0.1.0/*_arm64.deb | tar -xO ./usr/bin/waymark 2>/dev/null | od -An -tu1 -j18 -N1)
	;;
rpm)
	listing() { rpm --query --package --queryformat '[%{FILEMODES:perms} %{FILENAMES}\n]' "$1"; }
	[ "$(rpm --query --package --queryformat '%{ARCH}' /pkg/0.1.0/*.aarch64.rpm)" = aarch64 ] || die "architecture"
	[ "$(listing /pkg/0.1.0/*.aarch64.rpm)" = "$(listing /pkg/0.1.0/*.x86_64.rpm)" ] || die "files of the packages differ"
	machine=$(cd /tmp && rpm2cpio /pkg/0.1.0/*.aarch64.rpm | cpio --quiet -i --to-stdout '*usr/bin/waymark' | od -An -tu1 -j18 -N1)
	;;
esac
[ "$machine" -eq 183 ] || die "the binary is for machine $machine, and 183 is arm64"

say "install"
! getent passwd waymark || die "the user was there before"
install_version 0.1.0
[ "$(stat -c '%U %G %a' $state)" = "waymark waymark 700" ] || die "state directory: $(stat -c '%U %G %a' $state)"
[ "$(stat -c '%U %G %a' $settings)" = "root root 640" ] || die "settings: $(stat -c '%U %G %a' $settings)"
[ "$(getent passwd waymark | cut -d: -f6,7)" = "$state:/usr/sbin/nologin" ] || die "user: $(getent passwd waymark)"
waymark --version | grep -w v0.1.0 || die "version"
zcat /usr/share/man/man1/waymark.1.gz | grep -qi '^.TH "*waymark"* "*1' || die "no manual"
if [ "$mode" = systemd ]; then
	systemd-analyze verify --man=no $unit /usr/lib/systemd/system/waymark-joined.service || die "a unit is not valid"
	! systemctl --quiet is-active waymark || die "it started without being told to"
	echo "exposure: $(systemd-analyze security --no-pager waymark.service | tail -n 1)"
fi
echo "WAYMARK_NAME=package-test" >>$settings # the operator's own line

say "start, write"
start
first=$(daemon_pid)
[ "$(stat -c %U /proc/"$first")" = waymark ] || die "the daemon runs as $(stat -c %U /proc/"$first")"
tr '\0' '\n' </proc/"$first"/environ | grep -x WAYMARK_NAME=package-test || die "the settings are not read"
for run in handed-in second third fourth; do
	waymark start coder --id $run --task "Mend it." --quiet
	waymark signal $run note --text "The sum is wrong." --quiet
done
runs >/tmp/before
cat /tmp/before
[ "$(wc -l </tmp/before)" -gt 3 ] || die "not every run is listed"
waymark verify --all

if [ "$mode" = systemd ]; then
	say "kill -9: systemd starts it again"
	kill -KILL "$first"
	until_true "it was not started again" new_process "$first"
	until_true "the daemon does not answer" waymark fleet
	first=$(daemon_pid)
fi

say "upgrade"
install_version 0.1.1
waymark --version | grep -w v0.1.1 || die "version"
if [ "$mode" = systemd ]; then
	until_true "the upgrade did not restart it" new_process "$first"
	systemctl --quiet is-enabled waymark || die "the upgrade disabled it"
	[ "$(systemctl show --property=Result --value waymark)" = success ] || die "it did not stop well"
else
	stop_plain
	start
fi
grep -qx WAYMARK_NAME=package-test $settings || die "the operator's setting is gone"
until_true "the daemon does not answer" waymark fleet
runs >/tmp/after
diff /tmp/before /tmp/after || die "runs differ after the upgrade"
waymark verify --all
waymark start coder --id after-upgrade --task "Mend it." --quiet

say "remove"
[ "$mode" = systemd ] || stop_plain
remove >/tmp/removal 2>&1 || { cat /tmp/removal; die "removal"; }
cat /tmp/removal
[ ! -e /usr/bin/waymark ] && [ ! -e $unit ] || die "files are left"
if [ "$mode" = systemd ]; then
	! systemctl --quiet is-active waymark || die "it runs on"
	[ ! -e /etc/systemd/system/multi-user.target.wants/waymark.service ] || die "it is still enabled"
fi
! pgrep -x waymark 2>/dev/null || die "a process is left"
[ "$(stat -c '%U %a' $state)" = "waymark 700" ] || die "the state directory is gone or another's"

say "install again: all is there"
install_version 0.1.1
start
runs >/tmp/again
(cat /tmp/before && echo '"run": "after-upgrade"') | sort -u | diff - /tmp/again || die "runs differ after the removal"
waymark verify --all

say "remove, and the settings, too"
[ "$mode" = systemd ] || stop_plain
case $kind in
deb) dpkg --purge waymark >/tmp/purge 2>&1 ;;
rpm) rpm --erase waymark >/tmp/purge 2>&1 ;;
esac
cat /tmp/purge
grep -q "kept: $state" /tmp/purge || die "it does not say what it keeps"
[ ! -e $settings ] || die "the settings are left"
[ -s $state/nats/identity.json ] || die "the data is gone"
say "passed: $kind $mode"
