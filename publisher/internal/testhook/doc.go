// Package testhook has what a test of an agent changes in its executor.
//
// It is handed to publisher.Connect with the context, so that no field of the public configuration is a test's. It knows nothing of runs.
package testhook
