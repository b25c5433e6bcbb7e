// Package webhook posts the reasons why runs need a person to a URL, the entries of the inbox, and the ends of runs.
//
// It looks at the state of runs, not at events: once a second the daemon that folds a shard lists its runs that may
// need a person, and the watch reads those that changed. It posts each new reason until the receiver accepts it or
// the reason ends, and reads the run again before each post. So nothing is stored, and nothing is lost with a daemon:
// the next one posts the reasons that still hold again, with the same id. So delivery is at least once.
//
// Ends are read from the index of ended runs, a page behind a stored cursor. It moves once the receiver has accepted them,
// so a receiver may be away. An end that it refuses while it accepts others is given up after some tries. To tell the two
// apart, the watch repeats an accepted post after a refused one.
//
// A post is a CloudEvent in structured form, signed as defined by Standard Webhooks
// (https://www.standardwebhooks.com). The package does not know NATS: the daemon passes the runs in.
package webhook
