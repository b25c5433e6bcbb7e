// Package waymarktest tests agents, in a test binary and without anything running beside it.
//
//	func TestAgent(t *testing.T) {
//		waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
//			return agent(model, mailTool(out)).Work
//		})
//	}
//
// [CrashEverywhere] runs an agent again and again, kills its executor at another event each time, and compares where the run ends and what
// it did outside with a run that nobody killed. [Replay] plays a recorded run against the code as it is now, and names the first
// difference. [Start] gives a test a [World] of its own: an embedded NATS server, a daemon and a fleet, which the test kills, stops and
// starts, and a clock that it moves.
//
// Everything runs in the process of the test, on loopback, in a directory of the test's own, and ends with it. Killed is what loses its
// connection and its memory at once: a goroutine cannot be ended from outside, so that the work of a killed executor sees its context
// end, and nothing of it reaches the log any more. What only another process or a power cut shows is tested in the repository of Waymark.
package waymarktest
