// Package waymarktest tests agents in go test. Nothing else has to run.
//
//	func TestAgent(t *testing.T) {
//		waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
//			return agent(model, mailTool(out)).Work
//		})
//	}
//
// [CrashEverywhere] runs an agent again and again and kills its executor at another event each time. It compares the outcome and the side
// effects of each run with those of a run without a crash. [Replay] plays a recorded run against the code as it is now, and names the first
// difference. [Start] gives a test a [World] of its own: an embedded NATS server, a daemon and a fleet, which the test kills, stops and
// starts, and a clock that it moves.
//
// Everything runs in the process of the test, on loopback, in a directory of its own, and ends with the test. A killed executor loses its
// connection and its memory at once. A goroutine cannot be ended from outside: the work of a killed executor sees its context end, and none
// of its events reach the log any more. Killed processes and power cuts are tested in Waymark's own repository.
package waymarktest
