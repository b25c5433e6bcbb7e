package publisher

import (
	"context"

	"github.com/waymarkio/waymark/schema"
)

// maxToldSignals bounds the signals that one turn passes to the model, in bytes of text; the next turn passes on the
// rest.
const maxToldSignals = 128 << 10

// signalled reports whether the run has signals that the model has not answered.
func (l *looping) signalled() bool { return len(l.run.Head().Signals) > 0 }

// told returns the signals for one turn, in order: at least the first, and the following ones that fit.
func (l *looping) told(ctx context.Context, turn int32) (ids []string, messages []schema.Message, err error) {
	signals, err := l.run.Signals(ctx)
	if err != nil {
		return nil, nil, err
	}
	size := 0
	for _, s := range signals {
		if s.Turn != 0 && s.Turn != turn {
			continue
		}
		m := s.Message()
		if size += len(textOf(&m)); size > maxToldSignals && len(ids) > 0 {
			break
		}
		ids, messages = append(ids, s.ID), append(messages, m)
	}
	return ids, messages, nil
}

// toAnswer reports whether the model must answer signals before the run may end. At a limit no turn is left for them,
// and they are reported as not consumed.
func (l *looping) toAnswer(ctx context.Context) (bool, error) {
	if !l.signalled() || l.run.Head().TurnPurpose == schema.PurposeRecovery || l.recordedLimit() != "" {
		return false, nil
	}
	limit, err := l.reached(ctx, l.Compact != nil)
	return err == nil && limit.Kind == "", err
}
