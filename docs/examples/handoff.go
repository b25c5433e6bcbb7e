package examples

import (
	"context"
	"errors"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: handoff

// HandOver offers the remaining work to another agent. The files come from the log. A second try with the same id does
// not make a second offer.
func HandOver(ctx context.Context, run *publisher.Run, left ...schema.HandoffRemaining) (publisher.Offer, error) {
	return run.Handoff(schema.HandoffOfferedData{
		HandoffID: "to-review", Reason: "threshold_critical", Kind: schema.HandoffTransfer, NextAgent: "reviewer", Remaining: left,
		Context: &schema.HandoffContext{Decisions: []string{"The parser stays recursive."}},
	}).Offer(ctx)
}

// ErrNoOffer is returned by TakeOffer when the run has no open offer.
var ErrNoOffer = errors.New("run has no open offer")

// TakeOffer carries out the oldest open offer of a run, or one whose executor died before it started the child. The
// child run cites the offer.
func TakeOffer(ctx context.Context, fleet *publisher.Fleet, parent string) (*publisher.Run, error) {
	offers, err := fleet.Offers(ctx, parent)
	if err != nil {
		return nil, err
	}
	for _, offer := range offers {
		if offer.Status == schema.HandoffStatusAccepted {
			if _, err := fleet.Head(ctx, offer.ChildRun); !errors.Is(err, publisher.ErrRunNotFound) {
				continue // the executor that accepted it carries it out
			}
		}
		child, err := fleet.AcceptHandoff(ctx, offer, publisher.RunSpec{})
		if errors.Is(err, publisher.ErrHandoffTaken) {
			continue // another executor was faster
		}
		return child, err // after an error, accept the same offer again: it continues where it stopped
	}
	return nil, ErrNoOffer
}

// end of handoff

// snippet: document

// HandOverDocument offers a document of another tool: JSON in the form of handoff.offered, also with names in
// camelCase. If it is too long for its reader, the warning is returned and no offer is made.
func HandOverDocument(ctx context.Context, run *publisher.Run, document []byte) (offer publisher.Offer, warning string, err error) {
	data, err := schema.ParseHandoff(document)
	if err != nil {
		return offer, "", err // the error names the field
	}
	data.HandoffID = "from-the-tool"
	h := run.Handoff(*data)
	check, err := h.Check()
	if err != nil || check.Warning != "" {
		return offer, check.Warning, err
	}
	offer, err = h.Offer(ctx)
	return offer, "", err
}

// end of document

// snippet: handoff-tool

// Writer hands its finished text over to another agent. The reviewer's run has the same task, and its model reads what
// is left to do. The writer's run ends.
func Writer(model publisher.Model) publisher.Loop {
	review := publisher.HandoffTool("review", "Hands the finished text over to its reviewer.", "reviewer")
	return publisher.Loop{System: "Write the text, then hand it over.", Model: model, Tools: []publisher.Tool{review}}
}

// end of handoff-tool
