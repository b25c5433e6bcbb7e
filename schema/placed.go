package schema

import (
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Placed says in which shard a run begins that does not begin in its home, the shard where the fleet's first number of shards puts it.
// Whoever begins such a run first leaves this mark on the run's subject in its home, by compare-and-set on an empty subject, as a
// first event is stored. That number never changes, so everybody who begins the run meets there, whatever settings each knows: the
// first mark counts, and the run is begun in the shard that it names. It is no event of the run, and is never folded. It stays for
// as long as the log, also after the run was removed: the id is not used again.
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
