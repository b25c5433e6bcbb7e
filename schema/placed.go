package schema

import (
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Placed is a mark that names the shard of a run which does not begin in its home. The home is the shard where the fleet's first
// number of shards puts the run. Before an executor begins such a run, it leaves this mark on the run's subject in the home, by
// compare-and-set on an empty subject, as a first event is stored. The first number of shards never changes, so all executors that
// begin the run write to the same subject, whatever settings they know. The first mark counts: the run begins in the shard that it
// names. A mark is no event of the run and is never folded. It stays as long as the log, also after the run was removed, because a
// run id is not used again.
type Placed struct {
	// Shard in which the run is begun.
	Shard int            `json:"shard"`
	Extra jsontext.Value `json:",embed"`
}

// NewPlaced builds the mark. The nonce tells two marks of one run apart.
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

// PlacedOfRecord is [PlacedOf] of a record's event; false also for a record that is no event.
func PlacedOfRecord(rec *Record) (Placed, bool) {
	e, err := Decode(rec.Header, rec.Body)
	if err != nil {
		return Placed{}, false
	}
	return PlacedOf(e)
}

// PlacedOf returns what a mark says; false for every other event. A mark that cannot be read names no shard, -1.
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
