// Package consumer is the daemon of a fleet: it folds the log into checkpoints and segments, detects dead executors, and answers those who ask
// for a run. A program that embeds Waymark needs [Daemon] and nothing else.
//
// It puts the parts together, follows the fleet's settings, and brings shards into service that are added while it runs:
//
//   - package fold: one shard's fold loop;
//   - package service: recovery and queries over NATS request-reply;
//   - package liveness: live runs, heartbeats, and the runs of silent executors;
//   - package assign: which replica folds which shard.
//
// It must not know how any of them works. Fold and service meet in the buckets only. The service does not wait for a fold worker: a checkpoint
// of any age, or none, is where it starts to fold from.
package consumer
