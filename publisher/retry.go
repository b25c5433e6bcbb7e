package publisher

import (
	"context"
	"errors"
	"time"

	"github.com/waymarkio/waymark/internal/pause"
)

// pause returns the waits between tries.
func (c *Config) pause() *pause.Backoff { return &pause.Backoff{Next: c.Backoff, Most: c.MaxBackoff} }

// insist retries do while the service that it needs is unavailable, until ctx ends; most bounds each try.
func (f *Fleet) insist(ctx context.Context, most time.Duration, do func(try context.Context) error) error {
	wait := f.cfg.pause()
	for {
		try, cancel := context.WithTimeout(ctx, most)
		err := do(try)
		cancel()
		if err == nil || !errors.Is(err, ErrUnavailable) || !wait.Wait(ctx) {
			return err
		}
	}
}
