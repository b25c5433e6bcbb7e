// Package deploy has the files to run Waymark and its NATS server in other ways than "waymark serve" alone:
// configurations of the server and units of the service manager.
//
// It owns no code. Its tests pass every file to the program that will read it, so that each file works: the NATS
// configuration starts a real server, on which a fleet is provisioned and folded.
package deploy
