package schema

// Replay says what a resumed run may do with a call whose result was not recorded.
type Replay string

// Replay policies. Absent means [ReplayHold]: side effects are unknown.
const (
	// ReplayPure may be run again freely.
	ReplayPure Replay = "pure"
	// ReplayIdempotent may be run again with the same idempotency key.
	ReplayIdempotent Replay = "idempotent"
	// ReplayVerify asks the tool's verify subject first.
	ReplayVerify Replay = "verify"
	// ReplayHold leaves it to a person. The default.
	ReplayHold Replay = "hold"
)

// Settlement says how a call in doubt was settled.
type Settlement string

// Settlements.
const (
	// SettledRerun reopens the call under the current epoch: it will be run again.
	SettledRerun Settlement = "rerun"
	// SettledVerified closes it with what the tool itself says happened.
	SettledVerified Settlement = "verified"
	// SettledAdopted closes it with the late result that the older executor recorded.
	SettledAdopted Settlement = "adopted"
	// SettledAbandoned closes it without a result.
	SettledAbandoned Settlement = "abandoned"
	// SettledDecided closes it with what a person decided.
	SettledDecided Settlement = "decided"
)

// Kinds of a hand-off.
const (
	// HandoffContinuation is carried on by the same agent with a fresh context. The default.
	HandoffContinuation = "continuation"
	// HandoffTransfer goes to another agent.
	HandoffTransfer = "transfer"
)

// Decisions about a call.
const (
	// DecisionAllow lets it run.
	DecisionAllow = "allow"
	// DecisionDeny does not; it fails without having run.
	DecisionDeny = "deny"
	// DecisionAsk leaves it to a person; it does not run before another decision allows it.
	DecisionAsk = "ask"
)

// Reasons to wait.
const (
	WaitHumanInput     = "human_input"
	WaitToolApproval   = "tool_approval"
	WaitExternalSystem = "external_system"
	WaitAuth           = "auth"
	// WaitToolInDoubt waits for the settlement of a held call.
	WaitToolInDoubt = "tool_in_doubt"
)

// Purposes of a turn.
const (
	PurposeWork     = "work"
	PurposeRecovery = "recovery"
)
