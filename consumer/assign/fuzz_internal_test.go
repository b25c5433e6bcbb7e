package assign

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// alone are sightings that no replica shares.
type alone struct{}

func (alone) TakeUnheard() []Seen   { return nil }
func (alone) HeardElsewhere([]Seen) {}

// FuzzHeard tries announcements of another replica, or of another client on its subject.
func FuzzHeard(f *testing.F) {
	f.Add([]byte(`{"holder":"a","id":"b","freed":[0,-1,99],"seen":[{"executor":"ex-1"}]}`))
	f.Add([]byte(`{"holder":"a","id":"b","leaving":true}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		now := time.Unix(1_000_000, 0)
		a := New("f", "me", 4, nil, alone{}, func() time.Time { return now }, zerolog.Nop())
		a.heard(&nats.Msg{Data: data})
		a.heard(&nats.Msg{Data: data})
		require.LessOrEqual(t, len(a.peers), 1)
		require.Len(t, a.owners, 4)
	})
}
