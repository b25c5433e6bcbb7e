#!/bin/sh
# Makes all that three servers on this one machine need, out of the files that three machines get: certificates, the disk's
# key, three copies of nats.conf with other paths and ports, and the same for Prometheus and Grafana. To try the steps of
# docs/deploy.md before they are done for good. What is there already stays.
#
#   sh rehearse.sh DIRECTORY [PORT_FOR_CLIENTS [PORT_FOR_ROUTES [PORT_FOR_MONITORING [PORT_OF_DAEMONS]]]]
#
# Each port is the first of three. They are 4222, 6222, 8222 and 9477 unless others are named.
set -eu
umask 077
if [ $# -lt 1 ] || [ $# -gt 5 ]; then
	sed -n 's/^# \{0,1\}//; 2,8p' "$0" >&2
	exit 2
fi
shipped=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
case $dir in *[!A-Za-z0-9/._-]*)
	echo "rehearse.sh: choose a directory without spaces and signs, not $dir" >&2
	exit 2
	;;
esac
client=${2:-4222} route=${3:-6222} monitor=${4:-8222} daemon=${5:-9477}
mkdir -p "$dir/tls" "$dir/grafana/datasources" "$dir/grafana/dashboards"
cd "$dir"

certificates() {
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=waymark-rehearsal -keyout tls/ca.key -out tls/ca.pem &&
		openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=nats -keyout tls/server.key -out tls/server.csr &&
		printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n' >tls/server.ext &&
		openssl x509 -req -in tls/server.csr -CA tls/ca.pem -CAkey tls/ca.key -CAcreateserial -days 30 -extfile tls/server.ext -out tls/server.pem
}
[ -e tls/server.pem ] || certificates 2>openssl.log || {
	cat openssl.log >&2
	exit 1
}
[ -e store-key.conf ] || printf 'key: "%s"\n' "$(openssl rand -hex 32)" >store-key.conf
[ -e fleets.conf ] || cp "$shipped/nats/three-nodes/fleets.conf" fleets.conf

for i in 0 1 2; do
	node=nats-$((i + 1))
	sed -e "s|\$WAYMARK_NODE|$node|" -e "s|\$WAYMARK_LISTEN|127.0.0.1|" \
		-e "s|/etc/waymark/tls|$dir/tls|" -e "s|/var/lib/waymark/nats|$dir/$node|" \
		-e "s|port: 4222|port: $((client + i))|" -e "s|port: 6222|port: $((route + i))|" -e "s|127.0.0.1:8222|127.0.0.1:$((monitor + i))|" \
		-e "s|//nats-1:6222|//127.0.0.1:$route|" -e "s|//nats-2:6222|//127.0.0.1:$((route + 1))|" -e "s|//nats-3:6222|//127.0.0.1:$((route + 2))|" \
		"$shipped/nats/three-nodes/nats.conf" >"$node.conf"
done

sed -e "s|\"waymark-1:9477\", \"waymark-2:9477\"|\"127.0.0.1:$daemon\", \"127.0.0.1:$((daemon + 1))\", \"127.0.0.1:$((daemon + 2))\"|" \
	"$shipped/prometheus/prometheus.yaml" >prometheus.yaml
cp "$shipped/prometheus/alerts.yaml" alerts.yaml
sed -e 's|http://prometheus:9090|http://127.0.0.1:9090|' "$shipped/grafana/datasource.yaml" >grafana/datasources/waymark.yaml
sed -e "s|/var/lib/grafana/dashboards|$shipped/grafana|" "$shipped/grafana/provider.yaml" >grafana/dashboards/waymark.yaml
echo "made $dir"
