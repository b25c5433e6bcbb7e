package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// closers are the clean-up steps of what was opened, closed in reverse.
type closers struct {
	steps []closeStep
}

type closeStep struct {
	name  string
	limit time.Duration
	run   func(context.Context) error
}

// add names a step that must end within limit.
func (c *closers) add(name string, limit time.Duration, run func(context.Context) error) {
	c.steps = append(c.steps, closeStep{name: name, limit: limit, run: run})
}

// close runs every step in reverse, whatever the others return, and joins the errors. It is not ended by
// the context that ended the work: only by each step's own limit.
func (c *closers) close(ctx context.Context) error {
	var errs []error
	for _, step := range slices.Backward(c.steps) {
		if err := step.close(context.WithoutCancel(ctx)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", step.name, err))
		}
	}
	c.steps = nil
	return errors.Join(errs...)
}

func (s closeStep) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	return s.run(ctx)
}
