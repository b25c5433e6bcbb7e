// Package natstest gives every test its own real NATS server.
//
// Start runs one inside the test process, on a temporary directory, in about 3 ms. It syncs at the default interval,
// because most tests do not depend on durability; natstest.SyncAlways() changes that. An in-process server can only
// stop cleanly: a crash's effect on JetStream's files cannot be imitated from within, so it has no Kill.
//
// StartProcess runs one in a child process, which is this test binary started again. It can be killed with
// kill -9 and started again on the same directory and port. For it the package's TestMain must be
//
//	func TestMain(m *testing.M) { natstest.Main(m) }
//
// which also fails the tests if a goroutine is left. A child ends when its parent does, in any way: it watches its
// standard input.
//
// All helpers take a testing.TB, fail it with a message about the attempted action, and clean up in reverse order.
package natstest
