package kvstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/schema"
)

// PlacesFormat is the format version of stored tables of places.
const PlacesFormat = 1

// Place lets one run be at work in a share of a limit.
type Place struct {
	Run string `json:"run"`
	// Position of the last event of the run at which a takeover with this place may be stored.
	Position schema.StreamSequence `json:"position"`
	// By is the attempt that put the place; empty if another one uses it, too.
	By string `json:"by,omitzero"`
}

// placeTable is the stored table of a share.
type placeTable struct {
	Format int     `json:"format"`
	Places []Place `json:"places"`
}

// Places are the tables of places of a fleet's limits, one for each share. They are in the bucket that is synced like
// the log: a table that lost a place would let one run too many be at work.
type Places struct {
	bucket bucket
	fleet  string
}

// NewPlaces returns the tables of a fleet. It does no I/O.
func NewPlaces(js jetstream.JetStream, fleet string) *Places {
	return &Places{newBucket(js, schema.LeaseBucket), fleet}
}

func (p *Places) key(share string) string { return "places." + p.fleet + "." + share }

// Get reads the table of a share from the leader; an absent one is empty.
func (p *Places) Get(ctx context.Context, share string) ([]Place, schema.Revision, error) {
	key := p.key(share)
	e, err := p.bucket.getFresh(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return nil, e.rev, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("get places %s of %s: %w", key, p.bucket.name, err)
	}
	t, err := decodeFormat[placeTable](e.value, PlacesFormat)
	if err != nil {
		return nil, e.rev, fmt.Errorf("places %s of %s: delete the key while no executor works, or end the limit: %w", key, p.bucket.name, err)
	}
	return t.Places, e.rev, nil
}

// Put stores the table of a share if the key is at revision rev, else it returns [ErrConflict].
func (p *Places) Put(ctx context.Context, share string, list []Place, rev schema.Revision) (schema.Revision, error) {
	key := p.key(share)
	value, err := json.Marshal(placeTable{PlacesFormat, list}, json.Deterministic(true))
	if err != nil {
		return 0, fmt.Errorf("put places %s of %s: %w", key, p.bucket.name, err)
	}
	next, err := p.bucket.put(ctx, key, value, rev)
	if err != nil {
		return 0, fmt.Errorf("put places %s of %s: %w", key, p.bucket.name, err)
	}
	return next, nil
}
