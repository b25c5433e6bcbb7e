// Package deploy holds the files with which Waymark and its NATS server are run elsewhere than by
// "waymark serve" alone: configurations of the server and units of the service manager.
//
// It owns no code. Its tests hand every file to the program that will read it, so that a file that stands
// here is a file that works: the NATS configuration starts a real server, on which a fleet is provisioned
// and folded.
package deploy
