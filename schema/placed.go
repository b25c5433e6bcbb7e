package schema

import (
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Placed is a tombstone that names the shard of a run that does not begin in its home. The home is the shard of the
// run under the fleet's first number of shards. Before an executor begins such a run, it stores this tombstone on the
// run's subject in the home, by compare-and-set on an empty subject, like a first event. The first number of shards
// never changes, so all executors that begin the run write to the same subject, whatever settings they know. The
// first tombstone wins: the run begins in the shard that it names. A tombstone is no event of the run and is never
// folded. It stays as long as the log, also after the run was removed, because a run id is not used again.
type Placed struct {
	// Shard in which the run begins.
	Shard int            `json:"shard"`
	Extra jsontext.Value `json:",embed"`
}

// NewPlaced builds the tombstone. The nonce distinguishes two tombstones of one run.
func NewPlaced(fleet, executor, run, nonce string, p Placed, at time.Time) (*Event, error) {
	body, err := json.Marshal(&p, json.Deterministic(true))
	if err != nil {
		return nil, err
	}
	return &Event{
		ID:              run + ".placed." + nonce,
		Source:          Source(fleet, executor),
		Type:            TypeOf(RunPlaced),
		Subject:         run,
		Time:            FormatTime(at),
		DataContentType: ContentTypeJSON,
		Data:            body,
	}, nil
}

// PlacedOfRecord is [PlacedOf] for a record's event; false also for a record that is no event.
func PlacedOfRecord(rec *Record) (Placed, bool) {
	e, err := Decode(rec.Header, rec.Body)
	if err != nil {
		return Placed{}, false
	}
	return PlacedOf(e)
}

// PlacedOf returns the content of a tombstone; false for every other event. The shard of an unreadable tombstone is
// -1.
func PlacedOf(e *Event) (Placed, bool) {
	if e == nil || e.Type != TypeOf(RunPlaced) {
		return Placed{}, false
	}
	var p Placed
	if err := json.Unmarshal(e.Data, &p); err != nil {
		return Placed{Shard: -1}, true
	}
	return p, true
}
