package kvstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// SpentFormat is the format version of [Spent].
const SpentFormat = 1

// Spent are the tokens that the runs of a shard have used in a day, for the budgets of the fleet. Each put is stored before
// the segments and checkpoints that have the counted events, in a bucket that is synced like the log: an event is in no
// checkpoint before it is counted, and up to the position no event is counted again.
type Spent struct {
	// Format is [SpentFormat].
	Format int `json:"format"`
	// Incarnation of the position's event stream.
	Incarnation string          `json:"incarnation"`
	Position    schema.Position `json:"position"`
	// Day on which the server stored the counted events, such as 2026-01-31.
	Day string `json:"day"`
	// Shares of budgets that were used on that day.
	Shares []SpentShare `json:"shares"`
	// Extra keeps the members of later versions.
	Extra jsontext.Value `json:",embed"`
}

// SpentShare is a share of a budget, and its tokens.
type SpentShare struct {
	schema.Scope
	Tokens int64 `json:"tokens"`
}

// spent is where the tokens of a shard are stored.
func (s *Shard) spent() (*bucket, string) {
	b := newBucket(s.js, schema.LeaseBucket)
	return &b, fmt.Sprintf("spent.%s.%d", s.Names.Fleet, s.Names.Shard)
}

// Spent reads what the shard has spent from the leader. Errors are those of [Checkpoints.Watermark].
func (s *Shard) Spent(ctx context.Context) (Spent, schema.Revision, error) {
	b, key := s.spent()
	e, err := b.getFresh(ctx, key)
	if err != nil {
		return Spent{}, e.rev, fmt.Errorf("get %s of %s: %w", key, b.name, err)
	}
	spent, err := decodeSpent(e.value)
	if err != nil {
		return Spent{}, e.rev, fmt.Errorf("%s of %s: %w", key, b.name, err)
	}
	return spent, e.rev, nil
}

func decodeSpent(value []byte) (Spent, error) {
	s, err := decodeFormat[Spent](value, SpentFormat)
	if err == nil && (s.Incarnation == "" || s.Position.Stream != 0 && s.Position.ID == "") {
		err = ErrCorrupt
	}
	if err != nil {
		return Spent{}, err
	}
	return s, nil
}

// PutSpent stores what the shard has spent if the key is at revision rev; 0 creates it. Of two fold workers one gets
// [ErrConflict]: it has lost the shard.
func (s *Shard) PutSpent(ctx context.Context, spent *Spent, rev schema.Revision) (schema.Revision, error) {
	b, key := s.spent()
	spent.Format = SpentFormat
	value, err := json.Marshal(spent, json.Deterministic(true))
	if err == nil {
		rev, err = b.put(ctx, key, value, rev)
	}
	if err != nil {
		return 0, fmt.Errorf("put %s of %s: %w", key, b.name, err)
	}
	return rev, nil
}

// WatchSpent calls see with what the shards of a fleet have spent, and with each change, until it returns false, ctx ends or
// the watch breaks. While nothing changes, it is called with nil from time to time.
func WatchSpent(ctx context.Context, js jetstream.JetStream, fleet string, see func(shard int, spent *Spent) bool) error {
	b := newBucket(js, schema.LeaseBucket)
	prefix := b.prefix + "spent." + fleet + "."
	begin, cancel := withDeadline(ctx)
	follow, err := eventlog.FollowKeys(begin, js.Conn(), js, b.stream, prefix+"*")
	cancel()
	if err != nil {
		return fmt.Errorf("watch %s*: %w", prefix, translate(err))
	}
	defer follow.Close(ctx, js)
	for more := true; more; {
		m, idle, err := follow.NextOrIdle(ctx)
		switch {
		case err != nil:
			return err
		case idle:
			more = see(0, nil)
		case !deletion(m.Record.Header):
			shard, err := strconv.Atoi(strings.TrimPrefix(m.Subject, prefix))
			if err != nil {
				return fmt.Errorf("key %.80q names no shard: %w", m.Subject, err)
			}
			spent, err := decodeSpent(m.Record.Body)
			if err != nil {
				return fmt.Errorf("%s: %w", m.Subject, err)
			}
			more = see(shard, &spent)
		}
	}
	return nil
}
