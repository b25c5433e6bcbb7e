package serve

import (
	"context"
	"errors"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/ui"
	"github.com/waymarkio/waymark/internal/inspector"
	"github.com/waymarkio/waymark/publisher"
)

// checkUI refuses an address of the pages that is reachable from other machines: the pages act with the daemon's rights.
func (c Cmd) checkUI() error {
	if !c.UI {
		return nil
	}
	return ui.CheckLocal("--ui-listen", c.UIListen)
}

// listenUI opens the address of the pages; it returns nil without --ui.
func (c Cmd) listenUI(ctx context.Context, open *closers) (*ui.Address, error) {
	if !c.UI {
		return nil, nil
	}
	address, err := ui.Listen(ctx, "--ui-listen", c.UIListen, nil)
	if err != nil {
		return nil, err
	}
	open.add("address of the pages", base.CloseTimeout, func(context.Context) error {
		if err := address.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	})
	return address, nil
}

// openUI makes the pages, on a separate connection, so that viewers do not slow down the daemon's work.
func (c Cmd) openUI(
	ctx context.Context, a *base.App, d *daemon, address *ui.Address, registry prometheus.Registerer, open *closers, log zerolog.Logger,
) (*ui.Pages, error) {
	by, err := base.Sender(a.Getenv("WAYMARK_OPERATOR"))
	if err != nil {
		return nil, err
	}
	nc, err := d.connect(ctx, "ui", registry, open, log)
	if err != nil {
		return nil, err
	}
	fleet, err := inspector.Connect(ctx, publisher.Config{Conn: nc, Fleet: a.Fleet})
	if err != nil {
		return nil, err
	}
	return ui.New(a, address, inspector.Config{Fleet: fleet, By: by, Acts: true}, func(another string) {
		log.Info().Str("address", another).Msg("another browser may look at the pages")
	})
}
