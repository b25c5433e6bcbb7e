// Package webhook posts the reasons for which runs need a person to a URL: approvals, questions, calls that a person must settle, quarantine
// and missing events.
//
// It looks at the state of runs, not at events: once a second the daemon that folds a shard looks which of its runs wait or are
// quarantined. It posts each new reason until the receiver takes it or the reason ends. So nothing is stored, and nothing is lost with a
// daemon: the next one posts the reasons that still hold once more, with the same id. That is at least once.
//
// A post is a CloudEvent in structured form, signed as Standard Webhooks defines (https://www.standardwebhooks.com). The package knows no
// NATS: the daemon hands in the runs.
package webhook
