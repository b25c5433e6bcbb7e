// Package publisher is the SDK of executors: it makes what an agent does durable at every turn and tool boundary, and
// takes runs over.
//
// It owns the way of an event from the executor to its acknowledgement: sequence, the compare-and-set that
// lets only one writer in, the answers of the server, large fields, and the handle's own fold of the run. What comes
// after the acknowledgement belongs to package consumer.
//
//	fleet ── Start, Resume, Claim ──▶ run ── StartTurn ──▶ turn ── Answer, Tool
//	  ├── NewExecutor ── Serve         ├── Phase, Compact, Artifact, Error, Limit, Mark, Handoff
//	  ├── Reader: Get, Head, Events,   ├── Ask, AwaitInput, AwaitSettled, Context
//	  │   List, History, Plan, Offers  ├── Task, Conversation
//	  │                                ├── Signals, AwaitSignal, ConsumeSignals
//	  └── Submit, Result, Signal,      └── End, Interrupt
//	      Input, Cancel, Settle
//
// A program that only reads uses [NewReader]: it has no executor's name, heartbeats or notices. Tests and scripts run the same work without a
// server on a run of [Unrecorded].
//
// # Promises
//
//   - A method that returned nil has made its event durable (in pipelined mode [Run.Flush] has). An event that
//     returned an error is not in the log, except where the error is [ErrUnresolved], or ended the handle: an
//     earlier try of it may have been stored in the moment before another took over, who has it then.
//   - Events of one handle are in the log in the order of their calls, without gaps, each once.
//   - What the fold would refuse is not published: the error is [ErrRejected] and nothing happened.
//   - Nothing is retried for ever, and nothing is dropped in silence.
//
// # The answers
//
// Every event expects the run's last stream sequence. One message is under way per run; it is sent again, the same
// message with the same id, until the deadline.
//
//	acknowledged           durable
//	wrong last sequence    the run is read up to the sequence named, then
//	                         my own id              the earlier try had succeeded: durable
//	                         higher epoch           ErrFenced, the handle ends; the outcome of a call in doubt is handed in as evidence
//	                         control event          folded; published behind it, unless the fold then refuses it
//	                                                (ErrRejected) or it is a cancellation and this begins new
//	                                                work (ErrCancelRequested, once)
//	                         lower epoch, others    folded; published behind them
//	                         my epoch, not mine     ErrForked, the handle ends
//	                         mine is gone           ErrLogRegressed, the handle ends
//	10164, 10158           wait, the same again
//	stream full            the same again while the daemon makes room, up to Config.FullPatience without any; then
//	                       ErrFleetFull with the quota; the handle goes on
//	none                   the same again until the deadline, then ErrUnresolved
//
// # States of a handle
//
//	usable ──no answer──▶ unresolved ──same call, Resolve──▶ usable
//	   ├──fenced, forked, regressed──▶ ended        (only Resume goes on with the run)
//	   └──let go by its executor─────▶ ended        (whoever claims it)
//
// # Who lives
//
// A fleet handle that has begun, resumed or claimed a run, or looked for one, says every few seconds over core NATS
// that this instance of the executor lives: one heartbeat for all of its runs, by one goroutine. The daemon calls the
// runs of who falls silent orphaned, and hands them to others. Close says that the executor leaves. The same handle
// hears notices of what others wrote into its runs: it reads them in the background, sixteen at once, so that a
// [Run.Context] ends and a wait goes on although nothing is published. A notice that is lost delays: what was written
// is met by the next publish, and whoever waits looks every five seconds.
//
// # Executors
//
// [Loop] is an agent of a model and tools, made on what is above: it does what comes next by the record of its run.
//
// [Executor] claims runs and drives them, each in a goroutine of its own for as long as its work runs. One table in
// executorstates.go says what is published when the work is over; how an executor is written is in docs/first-agent.md.
// A claim whose answer was lost is repeated with its request id, for its run lives as long as this process does, and
// nobody else would be given it.
//
//	             ┌─ work ──▶ completed, failed, cancelled         run.ended
//	claimed,     │
//	started, ────┼─ let go ─▶ interrupted, waiting                run.interrupted: claimable at once, or once answered
//	adopted      │
//	             └─ lost ──▶ dropped, handed over, left           nothing
//
// # What becomes of a call
//
// [Turn.Tool] looks at the record, does the first of these that applies, and looks again. What it decides is recorded
// before it is acted on, and a decision that something else outran is made again.
//
//	not recorded                        tool.called is published, as requested if there is a Policy
//	recorded otherwise                  ErrDiverged, with both sides
//	closed                              its outcome is returned
//	in doubt: a late result is there    settled as adopted
//	          denied                    tool.failed of type denied
//	          pure, idempotent          settled as rerun
//	          verify: done              settled as verified, with what the tool says
//	          verify: not_done          settled as rerun
//	          verify: anything else     ErrHeld, with the reason
//	          hold                      ErrHeld, with the command that settles it, 2.5 s behind the takeover or later
//	requested, and there is no tool     tool.failed of type unknown_tool
//	begun by this handle, no outcome    run again if pure or idempotent, else ErrHeld
//	no decision, and there is a Policy  it is asked; tool.decided
//	decided: ask                        run.waiting, once; the answer is the next decision
//	decided: deny                       tool.failed of type denied
//	hold, verify: open at the takeover, and that is less than 2.5 s ago, and not settled by this handle
//	                                    waited for
//	hold, verify: requested             tool.called: it is begun
//	hold, verify: no proof of the epoch tool.decided of the policy waymark.begin
//	open, and nothing against it        the tool runs; tool.returned or tool.failed
//
// A call is in doubt if it was begun when the run was taken over. The stricter of its recorded policy and the caller's counts: a
// call that is recorded as pure or idempotent, and hold or verify to the caller, is in doubt behind a takeover, begun or not.
// Proof of the epoch is that the latest event was acknowledged as a new one, to a try that was sent at most 2 s ago.
//
// [Reader.Plan] says the same in advance. [ServeVerify] is the tool's side of verify.
//
// # Hand-offs
//
// An offer is accepted by its hash and the id of the child that carries it out, in one control event that one taker
// gets; the child's run.started cites the offer. Whoever repeats [Fleet.AcceptHandoff] or [Run.Continue] after a crash
// goes on behind the last step that is in the log:
//
//	offered ──▶ accepted for child C ──▶ C is started ──▶ the parent has ended (Continue)
//	   │               │                      └── dead here: C is resumed, or left to who has it
//	   │               └── dead here: C is started, in the taker's name
//	   └── dead here: the offer stands, or is replaced when it is offered again under its id
//
// # Batches
//
// 16 and more events of one window in pipelined mode, or of one call, are published as one atomic batch. The SDK never sends a batch
// twice: when the server does not answer, it resolves the events one by one.
//
// # Large fields
//
// A result, argument, output or part above 256 KiB goes to the fleet's object store, named by its content, before its
// event is published; the event carries the reference. [Reader.Hydrate] and [Reader.Blob] load and verify.
package publisher
