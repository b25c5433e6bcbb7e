// Package publisher is the SDK for executors: it makes the work of an agent durable at every turn and tool boundary,
// and takes over runs of executors that died.
//
// It owns an event's way from the executor to its acknowledgement: sequence, the compare-and-set that admits only one
// writer, the server's answers, large fields, and the handle's own fold of the run. Package consumer owns everything
// after the acknowledgement.
//
//	fleet ── Start, Resume, Claim ──▶ run ── StartTurn ──▶ turn ── Answer, Tool
//	  ├── NewExecutor ── Serve         ├── Phase, Compact, Artifact, Error, Limit, Mark, Handoff
//	  ├── Reader: Get, Head, Events,   ├── Ask, AwaitInput, AwaitSettled, Context
//	  │   List, History, Plan, Offers  ├── Task, Conversation
//	  │                                ├── Signals, AwaitSignal, ConsumeSignals, Sleep
//	  └── Submit, Result, Signal,      └── End, Interrupt
//	      Input, Cancel, Settle, Release
//
// A program that only reads uses [NewReader]: it needs no executor name, and sends no heartbeats. Tests and scripts run
// the same work without a server, on a run of [Unrecorded].
//
// # Promises
//
//   - If a method returned nil, its event is durable. If it returned an error, the event is not in the log. There are
//     two exceptions: [ErrUnresolved], and an error that ended the handle. Then an earlier try may have been stored just
//     before another executor took over, and that executor has the event.
//   - Events of one handle are in the log in the order of their calls, without gaps, each once.
//   - An event that the fold would refuse is not published: the error is [ErrRejected] and nothing happened.
//   - No retry is endless, and no event is dropped silently.
//
// # The answers
//
// Every event expects the run's last stream sequence. A run has one message in flight; the same message is sent again
// with the same id until the deadline.
//
//	acknowledged           durable
//	wrong last sequence    the run is read up to the sequence named, then
//	                         my own id              the earlier try had succeeded: durable
//	                         higher epoch           ErrFenced, the handle ends; the outcome of a call in doubt is handed in as evidence
//	                         control event          folded; published behind it, unless the fold then refuses it
//	                                                (ErrRejected) or it is a cancellation and this begins new
//	                                                work (ErrCancelRequested, once), or it is a pause
//	                                                and this begins a turn, call or phase (ErrPaused)
//	                         lower epoch, others    folded; published behind them
//	                         my epoch, not mine     ErrForked, the handle ends
//	                         mine is gone           ErrLogRegressed, the handle ends
//	10164, 10158           wait, the same again
//	stream full            the same again while the daemon makes room, up to Config.FullPatience; then ErrFleetFull
//	                       with the quota; the handle goes on
//	none                   the same again until the deadline, then ErrUnresolved
//
// # States of a handle
//
//	usable ──no answer──▶ unresolved ──same call, Resolve──▶ usable
//	   ├──fenced, forked, regressed──▶ ended        (only Resume continues the run)
//	   └──released by its executor──▶ ended        (until it is claimed again)
//
// This table, and that of what a handle knows of each call, are in ledgerstates.go.
//
// # Liveness
//
// A fleet handle that has started, resumed or claimed a run, or looked for one, sends a heartbeat over core NATS every
// few seconds: one for all of its runs, from one goroutine. When an executor falls silent, the daemon marks its runs as
// orphaned and assigns them to others. Close announces that the executor leaves. The handle also receives notices when
// others write into its runs. It then reads those runs in the background, at most sixteen at once, so that a
// [Run.Context] ends and a wait continues although the handle publishes nothing. A lost notice only causes delay: the
// next publish finds the foreign events, and a waiting call looks every five seconds.
//
// # Executors
//
// [Loop] is an agent of a model and tools, built on this package: the record of the run decides its next step.
//
// [Executor] claims runs and drives each in a goroutine of its own until its work returns. The table in
// executorstates.go says what is published then; docs/first-agent.md explains how to write an executor. A claim whose
// answer was lost is not repeated: no heartbeat of this process lists the run, so the daemon orphans it, and an
// executor claims it again.
//
//	             ┌─ work ──▶ completed, failed, cancelled         run.ended
//	claimed,     │
//	started, ────┼─ release ▶ interrupted, waiting                run.interrupted: claimable at once, or once answered
//	adopted      │
//	             └─ lost ──▶ dropped, handed over, left           nothing
//
// # What becomes of a call
//
// [Turn.Tool] looks at the record, applies the first row that matches, and looks again. Each decision is recorded
// before it takes effect. If another event overtakes a decision, it is made again.
//
//	not recorded                        tool.called is published, as requested if there is a Policy
//	recorded otherwise                  ErrDiverged, with both sides
//	closed                              its outcome is returned
//	in doubt: there is a late result    settled as adopted
//	          denied                    tool.failed of type denied
//	          pure, idempotent          settled as rerun
//	          verify: done              settled as verified, with the tool's answer
//	          verify: not_done          settled as rerun
//	          verify: anything else     ErrHeld, with the reason
//	          hold                      ErrHeld, with the command that settles it, at least 2.5 s after the takeover
//	requested, and there is no such tool tool.failed of type unknown_tool
//	begun by this handle, no outcome    run again if pure or idempotent, else ErrHeld
//	no decision, and there is a Policy  the policy is asked; tool.decided
//	decided: ask                        run.waiting, once; the answer is the next decision
//	decided: deny                       tool.failed of type denied
//	hold, verify: open at a takeover less than 2.5 s ago, and not settled by this handle
//	                                    wait
//	hold, verify: requested             tool.called: it is begun
//	hold, verify: no proof of the epoch tool.decided of the policy waymark.begin
//	open, and nothing against it        the tool runs; tool.returned or tool.failed
//
// A call is in doubt if it was begun when the run was taken over. The stricter of the recorded policy and the caller's
// policy applies: a call recorded as pure or idempotent that is hold or verify to its caller is in doubt after a
// takeover, begun or not. The epoch is proven if the latest event was acknowledged as new, to a try sent at most 2 s
// ago.
//
// [Reader.Plan] predicts the same. [ServeVerify] is the tool's side of verify.
//
// # Hand-offs
//
// An acceptance names the hash of the offer and the id of the child run that carries it out. It is one control event,
// which only one executor can win. The child's run.started cites the offer. After a crash, [Fleet.AcceptHandoff] and
// [Run.Continue] continue after the last step in the log:
//
//	offered ──▶ accepted for child C ──▶ C is started ──▶ the parent has ended (Continue)
//	   │               │                      └── dead here: C is resumed, or left to its executor
//	   │               └── dead here: C is started, in the name of the executor that accepted
//	   └── dead here: the offer stays, or is replaced by a new offer under its id
//
// # Large fields
//
// A result, argument, output or part above 256 KiB goes to the fleet's object store, under the hash of its content,
// before its event is published. The event carries the reference. [Reader.Hydrate] and [Reader.Blob] load and verify
// such fields.
package publisher
