package kvstore

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
)

func TestErrors_ServersAwayOrTooFew_ToldApart(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]error{
		"no suitable peers for placement, peer offline":                       ErrUnavailable,
		"no suitable peers for placement, peer offline, insufficient storage": ErrUnavailable,
		"no suitable peers for placement, insufficient storage":               ErrFull,
		"no suitable peers for placement":                                     nil,
		"no suitable peers for placement, tags not matched ['ssd']":           nil,
	} {
		err := translate(&jetstream.APIError{Code: 400, ErrorCode: jsapi.CodeNoPeers, Description: words})
		require.ErrorContains(t, err, words)
		require.Equal(t, want == ErrUnavailable, errors.Is(err, ErrUnavailable), words) //nolint:errorlint // the table's own
		require.Equal(t, want == ErrFull, errors.Is(err, ErrFull), words)               //nolint:errorlint // the table's own
	}
}

func TestErrors_ServersMayCome_Waited(t *testing.T) {
	t.Parallel()
	api := func(code jetstream.ErrorCode, words string) error {
		return fmt.Errorf("create stream KV_WAYMARK_FLEETS: %w", &jetstream.APIError{Code: 400, ErrorCode: code, Description: words})
	}
	for _, err := range []error{
		fmt.Errorf("settings: %w", ErrUnavailable),
		// A leader that does not know the other two servers yet, as observed: the daemon ended five times within a
		// second.
		api(jsapi.CodeNoPeers, "no suitable peers for placement"),
	} {
		require.True(t, MayCome(err), "%v", err)
	}
	for _, err := range []error{
		api(jsapi.CodeNoPeers, "no suitable peers for placement, insufficient storage"),
		api(jsapi.CodeNoPeers, "no suitable peers for placement, tags not matched ['ssd']"),
		api(10074, "replicas > 1 not supported in non-clustered mode"),
		ErrFull, context.Canceled, errors.New("something else"),
	} {
		require.False(t, MayCome(err), "%v", err)
	}
}
