// Package natstest gives every test a real NATS server of its own.
//
// Start runs one inside the test process, on a temporary directory, in about 3 ms. It syncs at the default
// interval, since most tests do not look at durability; natstest.SyncAlways() changes that. An in-process server
// can only stop cleanly: what a crash does to JetStream's files cannot be imitated from within, so there
// is no Kill on it.
//
// StartProcess runs one in a child process, which is this test binary started again. It can be killed with
// kill -9 and started again on the same directory and port. For it the package's TestMain must be
//
//	func TestMain(m *testing.M) { natstest.Main(m) }
//
// which also fails the tests when a goroutine is left over. A child ends when its parent does, whichever
// way: it watches its standard input.
//
// All helpers take a testing.TB, fail it with a message that says what was attempted, and clean up after
// themselves in reverse order.
package natstest
