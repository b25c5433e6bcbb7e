// Package webhook posts the reasons for which runs need a person to a URL: the entries of the inbox.
//
// It looks at the state of runs, not at events: once a second the daemon that folds a shard lists its runs that may need a person, and the
// watch reads those that changed. It posts each new reason until the receiver takes it or the reason ends, and reads the run again before
// each post. So nothing is stored, and nothing is lost with a daemon: the next one posts the reasons that still hold once more, with the
// same id. That is at least once.
//
// A post is a CloudEvent in structured form, signed as Standard Webhooks defines (https://www.standardwebhooks.com). The package knows no
// NATS: the daemon hands in the runs.
package webhook
