// Package loadgen fills a fleet with many generated runs, for tests at a large size.
//
// Each run depends on its number alone ([Config.Run]). [Fill] publishes them like an executor: real events with the
// real codec, sequences and compare-and-set, in atomic batches. It puts nothing into a bucket: the daemon makes
// checkpoints, segments and indexes. [Check] compares runs with those of their numbers.
package loadgen
