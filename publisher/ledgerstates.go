package publisher

// callStage is the knowledge that a handle has of one call, in addition to its [schema.CallState] in the run's record.
// These go together:
//
//	             unrecorded  requested  begun  in doubt  closed
//	unknown          x           x        -       x        x
//	inherited        -           x        x       x        -
//	awaited          -           x        x       x        -
//	ready            -           x        x       -        x    late evidence closed it
//	running, ran     -           x        x       -        -    a pure or idempotent call runs as requested
//	done, handed     -           -        -       -        x
type callStage int

const (
	// callUnknown: this handle did nothing with the call. It may be recorded.
	callUnknown callStage = iota
	// callInherited: it was open at the takeover, and the previous executor may be about to begin it.
	callInherited
	// callAwaited: this handle may run it, once the previous executor can no longer begin it.
	callAwaited
	// callReady: this handle may run it.
	callReady
	// callRunning: this handle began it and does not know its outcome.
	callRunning
	// callRan: its tool ran here, and the outcome is not durable yet.
	callRan
	// callDone: it is closed, and no caller of this handle has its outcome.
	callDone
	// callHanded: it is closed, and its caller has the outcome. The model may use the id for another call.
	callHanded

	callStages = iota
)

// callEvent changes what a handle knows of a call.
type callEvent int

const (
	// callTakenOver: the run was taken over while the call was open.
	callTakenOver callEvent = iota
	// callRecorded: the call, or its begin, is durable and from this handle.
	callRecorded
	// callAllowed: this handle recorded that the call may run.
	callAllowed
	// callRerun: this handle settled it as rerun. From then on the log refuses the previous epochs.
	callRerun
	// callRerunByOther: another writer settled it as rerun.
	callRerunByOther
	// callBegins: its tool begins here.
	callBegins
	// callReturns: its tool returned here.
	callReturns
	// callOver: its outcome is durable and from this handle.
	callOver
	// callOverByOther: another writer closed it, or the turn did.
	callOverByOther
	// callSuperseded: its turn was started again without it.
	callSuperseded
	// callDelivered: its caller has the outcome.
	callDelivered

	callEvents = iota
)

// callSteps has the next stage for each stage and event: the only way in which a stage changes. An event that changes
// nothing leads to the same stage. A closed call is never opened again, and only a call that runs here has an outcome
// here.
var callSteps = [callStages][callEvents]callStage{
	//              taken over     recorded     allowed      rerun        by other     begins       returns      over        by other    superseded  delivered
	callUnknown:   {callInherited, callReady, callReady, callReady, callReady, callRunning, callUnknown, callHanded, callDone, callHanded, callHanded},
	callInherited: {callInherited, callReady, callAwaited, callReady, callAwaited, callRunning, callInherited, callHanded, callDone, callHanded, callHanded},
	callAwaited:   {callInherited, callReady, callAwaited, callReady, callAwaited, callRunning, callAwaited, callHanded, callDone, callHanded, callHanded},
	callReady:     {callReady, callReady, callReady, callReady, callReady, callRunning, callReady, callHanded, callDone, callHanded, callHanded},
	callRunning:   {callRunning, callRunning, callRunning, callRunning, callRunning, callRunning, callRan, callHanded, callDone, callHanded, callRunning},
	callRan:       {callRan, callRan, callRan, callRan, callRan, callRan, callRan, callDone, callDone, callHanded, callHanded},
	callDone:      {callDone, callDone, callDone, callDone, callDone, callDone, callDone, callDone, callDone, callHanded, callHanded},
	callHanded:    {callHanded, callHanded, callHanded, callHanded, callHanded, callHanded, callHanded, callHanded, callHanded, callHanded, callHanded},
}

// after is the stage after an event.
func (s callStage) after(on callEvent) callStage { return callSteps[s][on] }

// open reports whether the call may still run or be closed here.
func (s callStage) open() bool { return s <= callRan }

// mine reports whether this handle may begin the call, apart from the wait for the previous executor.
func (s callStage) mine() bool { return s == callAwaited || s == callReady }

// begun reports whether this handle began the call and it is not closed.
func (s callStage) begun() bool { return s == callRunning || s == callRan }

// waits reports whether the previous executor may still begin the call.
func (s callStage) waits() bool { return s == callInherited || s == callAwaited }

// handleStage is what may still be published with a handle.
type handleStage int

const (
	// handleStarting: run.started is not durable yet.
	handleStarting handleStage = iota
	// handleUsable: the next event may be published.
	handleUsable
	// handleUnresolved: an event without an answer may be stored. Only the same events may be published.
	handleUnresolved
	// handleLost: another process has the run, or its log was changed. Nothing may be published.
	handleLost
	// handleReleased: this process released the run. Nothing may be published but the late outcome of a tool.
	handleReleased

	handleStages = iota
)

// handleEvent changes what may be published with a handle.
type handleEvent int

const (
	// handleStored: an event of the handle is durable.
	handleStored handleEvent = iota
	// handleAnswered: a delivery ended, and it is known of each of its events whether it is stored.
	handleAnswered
	// handleUnanswered: a delivery ended, and one of its events may be stored.
	handleUnanswered
	// handleGone: the log shows that the run is not this handle's any more.
	handleGone
	// handleRelease: the executor released the run.
	handleRelease

	handleEvents = iota
)

// handleSteps has the next stage for each stage and event: the only way in which a stage changes. A handle that has
// ended stays so, with the first reason.
var handleSteps = [handleStages][handleEvents]handleStage{
	//                 stored        answered      unanswered        gone            released
	handleStarting:   {handleUsable, handleStarting, handleUnresolved, handleLost, handleReleased},
	handleUsable:     {handleUsable, handleUsable, handleUnresolved, handleLost, handleReleased},
	handleUnresolved: {handleUnresolved, handleUsable, handleUnresolved, handleLost, handleReleased},
	handleLost:       {handleLost, handleLost, handleLost, handleLost, handleLost},
	handleReleased:   {handleReleased, handleReleased, handleReleased, handleReleased, handleReleased},
}

// after is the stage after an event.
func (s handleStage) after(on handleEvent) handleStage { return handleSteps[s][on] }
