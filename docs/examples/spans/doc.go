// Package main exports the turns and calls of a fleet's runs as OpenTelemetry spans, with an observer's rights.
//
// It owns no state: its position is the durable consumer "observer" of each shard, which the daemon's key makes. A message
// is acknowledged after the collector accepted its spans. Ids are hashes of what the span is about, so that a span that is
// sent again after a crash has the same id. On failure it prints the error and exits with 1; start it again.
package main
