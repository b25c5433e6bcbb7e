package checker

import (
	"time"

	"github.com/waymarkio/waymark/schema"
)

// DetailClaim is the detail of a takeover that the daemon chose the run of. Its request is the SDK's, and known only from the answer.
const DetailClaim = "claim"

// AttributeClaims assigns takeovers in the log to claims: operations of kind [Takeover] with [DetailClaim] as their
// detail. A claim without an answer has no run: the log names the executor, not the operation, and any of its claims
// that was in progress or unknown when the epoch was opened may be the one. A claim with an answer may have repeated
// such a claim, and so have taken effect long before it began. A repeat may have got another run than the claim,
// whose own was claimable again by then.
func AttributeClaims(h *History, finals []Final) {
	type given struct{ request, run string }
	answered := make(map[given]*Op)
	for i := range h.Ops {
		if op := &h.Ops[i]; op.Kind == Takeover && op.Request != "" {
			answered[given{op.Request, op.Run}] = op
		}
	}
	for i := range finals {
		for _, rec := range finals[i].Log {
			e, err := schema.Decode(rec.Header, rec.Body)
			if err != nil || e.Name() != schema.RunResumed {
				continue
			}
			data, err := schema.ParseData(e)
			resumed, ok := data.(*schema.RunResumedData)
			at, timeErr := time.Parse(time.RFC3339Nano, e.Time)
			if err != nil || timeErr != nil || !ok || resumed.Reason != "claim" {
				continue
			}
			key := given{resumed.RequestID, finals[i].Run}
			op := answered[key]
			if op != nil && op.Start <= at.UnixNano() {
				continue
			}
			before := claimBefore(h, resumed.Executor, at.UnixNano())
			switch {
			case before == nil: // it has no request: the checker will report that
			case op != nil:
				op.Start = before.Start
			default:
				before.Run, before.Request, before.Outcome = finals[i].Run, resumed.RequestID, Unknown
				answered[key] = before
			}
		}
	}
}

// claimBefore is the last claim of an executor that began before a moment, and was not answered.
func claimBefore(h *History, executor string, at int64) *Op {
	for n := len(h.Ops) - 1; n >= 0; n-- {
		op := &h.Ops[n]
		if op.Detail == DetailClaim && op.Run == "" && op.Outcome != OK && op.Executor == executor && op.Start <= at {
			return op
		}
	}
	return nil
}
