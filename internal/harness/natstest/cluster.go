package natstest

import (
	"net"
	"net/url"
	"strconv"

	"github.com/nats-io/nats-server/v2/server"
)

// Cluster makes a server one node of a cluster on this machine, with routes on 127.0.0.1. Every node has the same name,
// ports and credentials, and its own state directory.
type Cluster struct {
	// Name of the cluster.
	Name string
	// Node is this node's index in Ports, from 0.
	Node int
	// Ports are the ports of the nodes' routes.
	Ports []int
	// Via are the ports at which this node reaches the others' routes, if not at Ports: for example of a proxy that
	// can be cut. One per node, its own is not used. With it, nodes do not tell each other addresses that bypass it.
	Via []int
	// User and Password of clients and routes.
	User, Password string
}

// Options sets the options of the node's server.
func (c *Cluster) Options(o *server.Options) {
	o.Users = []*server.User{{Username: c.User, Password: c.Password}}
	o.Cluster = server.ClusterOpts{Name: c.Name, Host: o.Host, Port: c.Ports[c.Node], Username: c.User, Password: c.Password}
	ports := c.Ports
	if len(c.Via) > 0 {
		ports = c.Via
		o.Cluster.NoAdvertise = true
		// Nodes tell each other the addresses of others: with an unreachable one, a cut link stays cut.
		o.Cluster.Advertise = net.JoinHostPort(o.Host, "1")
	}
	for i, port := range ports {
		if len(c.Via) > 0 && i == c.Node {
			continue
		}
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats", User: url.UserPassword(c.User, c.Password), Host: net.JoinHostPort(o.Host, strconv.Itoa(port))})
	}
}
