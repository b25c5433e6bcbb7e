package inspector

import (
	"context"
	"errors"
	"time"

	"github.com/waymarkio/waymark/publisher"
)

// releaseWithin bounds the shutdown of an executor without runs.
const releaseWithin = 5 * time.Second

// As implements [Fleet].
func (f *remote) As(ctx context.Context, name string, use func(*publisher.Fleet) error) error {
	if err := f.lost(); err != nil {
		return err
	}
	cfg := f.cfg
	fleet, err := publisher.Connect(ctx, publisher.Config{
		Conn: cfg.Conn, Fleet: f.Name(), Executor: name, RequestTimeout: cfg.RequestTimeout, Encryption: cfg.Encryption, Heartbeat: -1,
	})
	if err != nil {
		return err
	}
	err = use(fleet)
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	return errors.Join(err, fleet.Close(limit))
}
