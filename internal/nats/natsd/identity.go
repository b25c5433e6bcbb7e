package natsd

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

// identity is the data that stays the same over restarts: clients keep their credentials and their address.
type identity struct {
	ServerName string `json:"server_name"`
	User       string `json:"user"`
	Password   string `json:"password"`
	Port       int    `json:"port"` // of the last start; 0 before the first
}

func loadIdentity(l natsconn.Layout) (identity, error) {
	var id identity
	err := natsconn.ReadState(l.Identity(), &id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Letters and digits only: in "--password TEXT" a text that begins with a dash would be read as a flag, and
		// shown in the error.
		id = identity{ServerName: "waymark-" + rand.Text(), User: "waymark", Password: rand.Text()}
		return id, writeJSON(l.Identity(), id)
	case err != nil:
		return identity{}, err
	case id.ServerName == "" || id.User == "" || id.Password == "" || id.Port < 0 || id.Port > 65535:
		return identity{}, fmt.Errorf("%w: %s lacks a server name, user or password, or has a bad port: remove it, and new credentials are made",
			natsconn.ErrUnusable, l.Identity())
	}
	return id, nil
}
