package publisher

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
	//                 stored        answered      unanswered        gone            let go
	handleStarting:   {handleUsable, handleStarting, handleUnresolved, handleLost, handleReleased},
	handleUsable:     {handleUsable, handleUsable, handleUnresolved, handleLost, handleReleased},
	handleUnresolved: {handleUnresolved, handleUsable, handleUnresolved, handleLost, handleReleased},
	handleLost:       {handleLost, handleLost, handleLost, handleLost, handleLost},
	handleReleased:   {handleReleased, handleReleased, handleReleased, handleReleased, handleReleased},
}

// after is the stage after an event.
func (s handleStage) after(on handleEvent) handleStage { return handleSteps[s][on] }

// ended reports whether nothing more may be published.
func (s handleStage) ended() bool { return s == handleLost || s == handleReleased }
