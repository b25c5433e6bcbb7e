// Package webhook posts what needs a person to an address: approvals, questions, calls that a person must settle, runs that are quarantined
// or miss events.
//
// It goes by how runs stand, not by what happened: once a second the daemon that folds a shard looks which of its runs wait, and what it
// has not posted yet is posted until the receiver takes it or nobody is needed any more. So nothing is stored for it, and nothing is
// lost with a daemon: the next one posts what still waits once more, with the same id. That is at least once.
//
// A post is a CloudEvent in structured form, signed as Standard Webhooks asks (https://www.standardwebhooks.com). It knows no NATS: who
// uses it hands in the runs.
package webhook
