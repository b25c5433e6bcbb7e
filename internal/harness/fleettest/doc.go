// Package fleettest is a small fleet for the tests of the daemon's parts: a clock that the test moves, and runs that it writes as an
// executor and the service would. It knows no fold worker and no service: a test brings the part that it tries.
package fleettest
