// Package consumer is the daemon of a fleet: it folds the log into checkpoints and segments, detects dead executors,
// and answers requests about runs. A program that embeds Waymark needs only [Daemon].
//
// It assembles the parts, follows the fleet's settings, and brings shards into service that are added while it runs:
//
//   - package fold: one shard's fold loop;
//   - package service: recovery and queries over NATS request-reply;
//   - package liveness: live runs, heartbeats, and the runs of silent executors;
//   - package assign: which replica folds which shard.
//
// It must not know how any of them works. Fold and service share only the buckets. The service does not wait for a
// fold worker: it folds from a checkpoint of any age, or from none.
package consumer
