package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/base/durable"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/schema"
)

// servedFile is the file in the state directory that says that a daemon has served the fleet in this account of this
// server. A server whose store was lost looks like a new one, and only the file tells them apart: without the account's
// name the daemon does not start.
func (d *daemon) servedFile(ctx context.Context, a *base.App, log zerolog.Logger) (string, error) {
	dir, err := a.StateDirectory()
	if err != nil {
		log.Warn().Err(err).Str("hint", "set WAYMARK_STATE_DIR to a directory that lasts").Msg("loss of the server's whole store would go unnoticed")
		return "", nil
	}
	dir = filepath.Join(dir, "served")
	if d.server != nil {
		return filepath.Join(dir, a.Fleet+"@embedded"), nil
	}
	ctx, cancel := context.WithTimeout(ctx, base.StartTimeout)
	defer cancel()
	// The server names the account after its first answer.
	if err := d.conns[0].FlushWithContext(ctx); err != nil {
		return "", fmt.Errorf("ask the nats server for the account of this connection: %w", err)
	}
	account := url.QueryEscape(d.conns[0].RemoteAccount())
	if account == "" {
		return "", failure.New(failure.Unavailable, "try again; if it stays, update the NATS server", "nats server %s does not name the account of this connection", d.target.Address())
	}
	plain := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '_'
	}
	server := strings.Map(plain, d.target.Address())
	return filepath.Join(dir, a.Fleet+"@"+server[:min(len(server), 90)]+"@"+account[:min(len(account), 60)]), nil
}

// remember writes the file. A daemon that cannot do so serves all the same.
func (d *daemon) remember(a *base.App, log zerolog.Logger) {
	if d.served == "" {
		return
	}
	_, err := os.Stat(d.served)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(d.served), 0o700); err == nil {
			err = durable.Replace(d.served, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, schema.FormatTime(a.Now()))
				return err
			})
		}
	}
	if err != nil {
		log.Warn().Err(err).Str("hint", "set WAYMARK_STATE_DIR to a directory that lasts").Msg("loss of the server's whole store would go unnoticed")
	}
}

// mayCreate returns an error if a missing fleet is not to be created: the daemon has served it before, so that its store
// is lost, or it has a key, so that waymark fleet add makes its fleet.
func (d *daemon) mayCreate(a *base.App, missing error) error {
	if d.server == nil {
		signer, err := keyring.SignerOf(d.conns[0])
		if err != nil {
			return err
		}
		if signer != nil {
			return &failure.Error{
				Code: failure.NotFound, Err: missing, What: fmt.Sprintf("fleet %s does not exist, and a daemon with a key creates none: %s", a.Fleet, missing),
				Hint: "if it is new: waymark fleet add " + a.Fleet + "; if its store was lost, restore a backup: " + a.Prompt.Command("restore DIR"),
			}
		}
	}
	since, err := os.ReadFile(d.served)
	if d.served == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return &failure.Error{
		Code: failure.Damaged, Err: missing,
		What: fmt.Sprintf("fleet %s is gone: a daemon with this state directory has served it on this server since %s", a.Fleet, strings.TrimSpace(string(since))),
		Hint: "restore a backup: " + a.Prompt.Command("restore DIR") + "; to begin with an empty fleet, remove " + d.served,
	}
}
