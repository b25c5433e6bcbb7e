package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// InfoHeader is the header with which the server names the sender of a request that crosses accounts.
const InfoHeader = "Nats-Request-Info"

// infoSubject is the subject on which a server tells a connection its user and account.
const infoSubject = "$SYS.REQ.USER.INFO"

// Errors of [Prover].
var (
	// ErrNotProven: the header does not prove a sender.
	ErrNotProven = errors.New("the nats server does not prove the sender of this request")
	// ErrRole: the sender's role has no right to the verb.
	ErrRole = errors.New("the sender's role does not permit this request")
)

// Prover returns a function that returns the sender of a request to the daemon of a fleet, as schema.ProvenBy. It is valid in the daemon's
// account only, to which no client connects; see [Proves]. The server adds the header to requests that enter the account, and replaces the
// client's.
func Prover(fleet string) func(verb string, m *nats.Msg) (by string, err error) {
	roles := make(map[string]Role)
	for _, role := range ClientRoles() {
		roles[AccountOf(role, fleet)] = role
	}
	return func(verb string, m *nats.Msg) (string, error) {
		text, err := soleInfo(m)
		switch {
		case err != nil:
			return "", err
		case text == "" && !schema.Changes(verb):
			return "", nil // a read of the daemon's account: all of them are one sender
		case text == "":
			return "", fmt.Errorf("%w: it has no header %s: use the credentials of a client role, not the daemon's", ErrNotProven, InfoHeader)
		}
		var info struct {
			Account string `json:"acc"`
			Service string `json:"svc"`
			User    string `json:"user"`
		}
		if err := json.Unmarshal([]byte(text), &info); err != nil {
			return "", fmt.Errorf("%w: header %s: %w", ErrNotProven, InfoHeader, err)
		}
		role, known := roles[info.Account]
		switch {
		case info.Service != "":
			// The message is an answer that a second import forwarded. Its header may be that of the answering
			// client.
			return "", fmt.Errorf("%w: it is an answer to another request, forwarded by its reply subject", ErrNotProven)
		case !known:
			return "", fmt.Errorf("%w: account %.80q belongs to no client role of fleet %s", ErrNotProven, info.Account, fleet)
		case !slices.Contains(verbRoles(verb), role):
			return "", fmt.Errorf("%w: %s of fleet %s may not %s", ErrRole, role, fleet, verb)
		case !nkeys.IsValidPublicUserKey(info.User):
			return "", fmt.Errorf("%w: the header names no key of account %s: write the accounts again (waymark fleet add %s --dir DIR) and reload the servers",
				ErrNotProven, info.Account, fleet)
		}
		return schema.ProvenBy(string(role), info.User), nil
	}
}

// soleInfo returns the value of the info header if the server wrote it, "" for a request of the daemon's own account, which has none.
//
// The server removes the client's header of that name and appends its own line: see [jsapi.HidesHeaders].
func soleInfo(m *nats.Msg) (string, error) {
	if jsapi.HidesHeaders(m) {
		return "", fmt.Errorf("%w: it has too many headers, or its header was not parsed whole: send each header as \"Name: value\"", ErrNotProven)
	}
	switch values := m.Header[InfoHeader]; len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	default:
		return "", fmt.Errorf("%w: it has %d headers %s", ErrNotProven, len(values), InfoHeader)
	}
}

// verbRoles are the roles with the right to a verb.
func verbRoles(verb string) []Role {
	switch {
	case slices.Contains(decidingVerbs, verb):
		return []Role{Operator}
	case slices.Contains(workingVerbs, verb):
		return []Role{Executor, Operator}
	case !schema.Changes(verb):
		return ClientRoles()
	}
	return nil
}

// Proves reports whether the server proves senders to this connection of a daemon: the connection is an NKey user of the daemon's account in
// this fleet. A server with NKey users verifies the key that a client names; a server without them forwards it unverified.
func Proves(nc *nats.Conn, fleet string, ask func(subject string) (*nats.Msg, error)) (bool, error) {
	if nc.Opts.Nkey == "" {
		return false, nil
	}
	m, err := ask(infoSubject)
	if err != nil {
		return false, fmt.Errorf("ask the nats server for the account of this connection: %w", err)
	}
	var reply struct {
		Data struct {
			Account string `json:"account"`
			User    string `json:"user"`
		} `json:"data"`
	}
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		return false, fmt.Errorf("the nats server's answer about the account of this connection: %w", err)
	}
	return reply.Data.Account == AccountOf(Daemon, fleet) && strings.EqualFold(reply.Data.User, nc.Opts.Nkey), nil
}
