package serve

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// checkSigner makes sure that the daemon can sign if its fleet has keys, and waits until its key has taken effect. It logs that a fleet has no
// keys.
func (c Cmd) checkSigner(ctx context.Context, a *base.App, js jetstream.JetStream, log zerolog.Logger) error {
	ring, err := kvstore.NewKeyring(js, a.Fleet)
	if err != nil {
		return err
	}
	keys, err := ring.Keys(ctx)
	if err != nil {
		return err
	}
	if !keys.Any() {
		event := log.Info()
		if ring.Signer() != nil {
			event = log.Warn().Str("hint", a.Prompt.Command("fleet keys add"))
		}
		event.Str("fleet", a.Fleet).Msg("fleet has no keys: control events are not signed")
		return nil
	}
	wait, err := ring.CheckSigner(ctx)
	if err != nil {
		hint := "list the fleet's keys: " + a.Prompt.Command("fleet keys")
		signer := ring.Signer()
		if signer == nil {
			hint = "start it with the key file of one of the fleet's daemons: " + a.Prompt.Command("serve --nkey FILE") +
				"; without such a file, create another key (nk -gen user), and add its public key: " + a.Prompt.Command("fleet keys add PUBLICKEY")
		} else if _, ok := keys.Key(signer.Name); !ok {
			hint = "add it: " + a.Prompt.Command("fleet keys add "+signer.Name) + "; " + hint
		}
		return &failure.Error{Code: failure.Refused, What: err.Error(), Err: err, Hint: hint}
	}
	if wait > 0 {
		log.Info().Str("key", ring.Signer().Name).Dur("wait", wait).Msg("waiting until the daemon's key takes effect")
		if err := pause.For(ctx, wait); err != nil {
			return err
		}
	}
	log.Info().Str("key", ring.Signer().Name).Msg("control events are signed")
	return nil
}

// sayUnsigned logs when the settings no longer accept the daemon's key.
func sayUnsigned(a *base.App, signer *keyring.Signer, settings schema.FleetSettings, log zerolog.Logger) {
	keys, err := keyring.Parse(settings.Fleet, settings.Keys)
	if err == nil {
		err = signer.May(keys, a.Now())
	}
	if err != nil {
		log.Error().Err(err).Str("hint", "list the fleet's keys: "+a.Prompt.Command("fleet keys")).
			Msg("control events of this daemon would be refused: it writes none")
	}
}
