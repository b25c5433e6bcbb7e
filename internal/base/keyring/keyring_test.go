package keyring_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newUser(t *testing.T) (pair nkeys.KeyPair, public string, seed []byte) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err = pair.PublicKey()
	require.NoError(t, err)
	seed, err = pair.Seed()
	require.NoError(t, err)
	return pair, public, seed
}

func startServer(t *testing.T, opts *server.Options) string {
	t.Helper()
	opts.Host, opts.Port, opts.NoLog, opts.NoSigs = "127.0.0.1", -1, true, true
	srv, err := server.NewServer(opts)
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	require.True(t, srv.ReadyForConnections(time.Minute))
	return srv.ClientURL()
}

func connect(t *testing.T, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	nc, err := nats.Connect(url, append(opts, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))...)
	require.NoError(t, err)
	t.Cleanup(func() {
		nc.Close()
		<-closed
	})
	return nc
}

// signs fails unless a fleet with the key accepts the signature of the connection's ring.
func signs(t *testing.T, nc *nats.Conn, key string) {
	t.Helper()
	signer, err := keyring.SignerOf(nc)
	require.NoError(t, err)
	require.Equal(t, key, signer.Name)
	ring := keyring.New("f", func(context.Context) ([]schema.FleetKey, error) { return []schema.FleetKey{{Key: key}}, nil }, signer,
		func(context.Context) (time.Time, error) { return time.Now(), nil })
	head := schema.NewHead("f", "r1")
	e, err := schema.NewControl("f", "daemon", "r1", 1, "n", &schema.RunCancelRequestedData{By: "alice"}, time.Now())
	require.NoError(t, err)
	require.NoError(t, ring.Sign(t.Context(), e, head.Digest))
	keys, err := ring.Keys(t.Context())
	require.NoError(t, err)
	header, body := e.Encode()
	rec := schema.NewRecord(1, header, body)
	v := head.Apply(keys, &rec)
	require.Equal(t, schema.Applied, v.Kind, v.Detail)
}

func TestSignerOf_NKey_Signs(t *testing.T) {
	t.Parallel()
	_, public, seed := newUser(t)
	url := startServer(t, &server.Options{Nkeys: []*server.NkeyUser{{Nkey: public}}})
	file := filepath.Join(t.TempDir(), "user.nk")
	require.NoError(t, os.WriteFile(file, seed, 0o600))
	option, err := nats.NkeyOptionFromSeed(file)
	require.NoError(t, err)
	nc := connect(t, url, option)
	signs(t, nc, public)

	// Another seed in the file is not accepted for the key of the connection.
	_, _, other := newUser(t)
	require.NoError(t, os.WriteFile(file, other, 0o600))
	_, err = keyring.SignerOf(nc)
	require.ErrorIs(t, err, keyring.ErrSigner)
}

func TestSignerOf_CredentialsFile_Signs(t *testing.T) {
	t.Parallel()
	operator, err := nkeys.CreateOperator()
	require.NoError(t, err)
	operatorKey, err := operator.PublicKey()
	require.NoError(t, err)
	account, err := nkeys.CreateAccount()
	require.NoError(t, err)
	accountKey, err := account.PublicKey()
	require.NoError(t, err)
	accountJWT, err := jwt.NewAccountClaims(accountKey).Encode(operator)
	require.NoError(t, err)
	_, public, seed := newUser(t)
	userJWT, err := jwt.NewUserClaims(public).Encode(account)
	require.NoError(t, err)
	resolver := new(server.MemAccResolver)
	require.NoError(t, resolver.Store(accountKey, accountJWT))
	url := startServer(t, &server.Options{TrustedKeys: []string{operatorKey}, AccountResolver: resolver})
	creds, err := jwt.FormatUserConfig(userJWT, seed)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "user.creds")
	require.NoError(t, os.WriteFile(file, creds, 0o600))
	signs(t, connect(t, url, nats.UserCredentials(file)), public)
}

func TestSignerOf_Password_IsNone(t *testing.T) {
	t.Parallel()
	url := startServer(t, &server.Options{Username: "u", Password: "p"})
	signer, err := keyring.SignerOf(connect(t, url, nats.UserInfo("u", "p")))
	require.NoError(t, err)
	require.Nil(t, signer)
	require.NoError(t, signer.May(schema.NoKeys, time.Now()), "in a fleet without keys no daemon signs")
	_, public, _ := newUser(t)
	keys, err := keyring.Parse("f", []schema.FleetKey{{Key: public}})
	require.NoError(t, err)
	require.ErrorContains(t, signer.May(keys, time.Now()), "--nkey")
}

func TestSigner_KeyThatIsNotTheFleets_MayNotSign(t *testing.T) {
	t.Parallel()
	_, public, _ := newUser(t)
	_, other, _ := newUser(t)
	_, first, _ := newUser(t)
	now := time.Now()
	signer := &keyring.Signer{Name: public}
	for name, test := range map[string]struct {
		key  schema.FleetKey
		want string
	}{
		"another key":   {schema.FleetKey{Key: other}, "its key " + public + " is none"},
		"its own":       {schema.FleetKey{Key: public}, ""},
		"not in effect": {schema.FleetKey{Key: public, Since: schema.FormatTime(now.Add(time.Minute))}, "takes effect at " + schema.FormatTime(now.Add(time.Minute))},
		"about to end":  {schema.FleetKey{Key: public, Until: schema.FormatTime(now.Add(10 * time.Second))}, "is retired"},
		"ends later on": {schema.FleetKey{Key: public, Until: schema.FormatTime(now.Add(30 * time.Second))}, ""},
	} {
		keys, err := keyring.Parse("f", []schema.FleetKey{test.key, {Key: first}})
		require.NoError(t, err)
		if err = signer.May(keys, now); test.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, keyring.ErrSigner, name)
		require.ErrorContains(t, err, test.want, name)
	}

	// Before the fleet's first key is in effect, no event is refused: its daemon continues, and signs.
	keys, err := keyring.Parse("f", []schema.FleetKey{{Key: public, Since: schema.FormatTime(now.Add(time.Minute))}})
	require.NoError(t, err)
	require.NoError(t, signer.May(keys, now))
	require.NoError(t, signer.May(keys, now.Add(59*time.Second)))
	// The second one waits for its time.
	keys, err = keyring.Parse("f", []schema.FleetKey{
		{Key: first, Since: schema.FormatTime(now.Add(time.Minute))}, {Key: public, Since: schema.FormatTime(now.Add(2 * time.Minute))},
	})
	require.NoError(t, err)
	require.NoError(t, signer.May(keys, now))
	require.ErrorIs(t, signer.May(keys, now.Add(61*time.Second)), keyring.ErrSigner)
	require.NoError(t, signer.May(keys, now.Add(2*time.Minute)))
}

// Nothing is folded with keys read so long ago that a later change may be in effect.
func TestRing_OldReading_IsReadAgain(t *testing.T) {
	t.Parallel()
	_, first, _ := newUser(t)
	_, second, _ := newUser(t)
	synctest.Test(t, func(t *testing.T) {
		list, readings := []schema.FleetKey{{Key: first}}, 0
		var failing error
		ring := keyring.New("f", func(context.Context) ([]schema.FleetKey, error) {
			readings++
			return list, failing
		}, nil, nil)
		signers := func() []string {
			keys, err := ring.Keys(t.Context())
			require.NoError(t, err)
			return keys.Signers()
		}
		require.Equal(t, []string{first}, signers())
		list = append(list, schema.FleetKey{Key: second})
		wait(schema.KeysFresh - time.Second)
		require.Len(t, signers(), 1)
		require.Equal(t, 1, readings)
		wait(time.Second)
		require.Len(t, signers(), 2)
		require.Less(t, schema.KeysFresh, schema.KeyDelay, "by then the second does not sign yet")

		// Unreadable settings do not mean a fleet without keys, and neither do missing keys.
		failing = errors.New("no leader")
		wait(schema.KeysFresh)
		_, err := ring.Keys(t.Context())
		require.ErrorIs(t, err, keyring.ErrRead)
		failing, list = nil, nil
		_, err = ring.Keys(t.Context())
		require.ErrorIs(t, err, keyring.ErrKeys)
	})
}

// wait lets the bubble's clock pass.
func wait(d time.Duration) { <-time.After(d) }

func TestParse_WhatIsNoKey_IsRefused(t *testing.T) {
	t.Parallel()
	_, public, _ := newUser(t)
	account, err := nkeys.CreateAccount()
	require.NoError(t, err)
	name, err := account.PublicKey()
	require.NoError(t, err)
	for what, list := range map[string][]schema.FleetKey{
		"of an account":          {{Key: name}},
		"a letter wrong":         {{Key: public[:len(public)-1] + "_"}},
		"no time":                {{Key: public, Since: "yesterday"}},
		"there twice":            {{Key: public}, {Key: public}},
		"ends before":            {{Key: public, Since: "2026-01-02T00:00:00Z", Until: "2026-01-01T00:00:00Z"}},
		"more than there may be": make([]schema.FleetKey, schema.MaxKeys+1),
	} {
		_, err := keyring.Parse("f", list)
		require.ErrorIs(t, err, keyring.ErrKeys, what)
	}
}
