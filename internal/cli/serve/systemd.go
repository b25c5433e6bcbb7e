package serve

import (
	"context"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
)

// notify tells systemd the state of a unit of Type=notify. Without systemd it does nothing.
func notify(state string, log zerolog.Logger) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		log.Warn().Err(err).Str("state", state).Msg("systemd not notified")
	}
}

// watchdog tells systemd that the daemon is alive, four times in WatchdogSec, until ctx ends. A daemon that /healthz calls not
// alive says nothing: if that lasts for WatchdogSec, systemd restarts it.
func watchdog(ctx context.Context, health *healthServer, log zerolog.Logger) {
	interval, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn().Err(err).Msg("systemd watchdog is off")
	}
	if interval <= 0 {
		return
	}
	again := time.NewTicker(interval / 4)
	defer again.Stop()
	for {
		if list := health.restartTroubles(ctx); len(list) == 0 {
			notify(systemd.SdNotifyWatchdog, log)
		} else {
			log.Error().Str("part", list[0].Check).Str("detail", list[0].Detail).Msg("daemon is not alive: systemd restarts it if that lasts")
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}
