// Package waymarktest tests agents in go test. It needs no other process.
//
//	func TestAgent(t *testing.T) {
//		waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
//			return agent(model, mailTool(out)).Work
//		})
//	}
//
// [CrashEverywhere] runs an agent many times and kills its executor at another event each time. It compares the outcome
// and the side effects of each run with those of a run without a crash. [Replay] replays a recorded run against the
// current code, and reports the first difference. [Crash.Before] and [ReplayFromEach] test a deploy. [Start] gives a test
// a [World] of its own: an embedded NATS server, a daemon and a fleet, whose parts the test can stop and start, executors
// that it can kill, and a clock that it can advance.
//
// Everything runs in the test's process, on loopback, in a directory of its own, and ends with the test. A killed
// executor loses its connection and its memory at once. A goroutine cannot be ended from outside: the context of a
// killed executor's work ends, and none of its events reach the log any more. Waymark's own repository tests killed
// processes and power cuts.
package waymarktest
