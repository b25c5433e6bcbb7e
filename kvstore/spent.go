package kvstore

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

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
