package schema

import (
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Placed says that a run is being begun in another shard. While a fleet opens a new generation of shards, whoever begins a
// run by the new one first leaves this mark on the run's subject in the shard where the generation before would put it:
// an executor that has not heard of the change finds its run.started refused there, as the compare-and-set of a first
// event is on an empty subject. The mark is no event of the run: it is never folded.
type Placed struct {
	// Shard in which the run is begun.
	Shard int `json:"shard"`
	// Change of the fleet's settings that the mark belongs to. One of an earlier change proves nothing.
	Change int            `json:"change"`
	Extra  jsontext.Value `json:",embed"`
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

// PlacedOf returns what a mark says; false for every other event. A mark that cannot be read is one of change 0.
func PlacedOf(e *Event) (Placed, bool) {
	if e == nil || e.Type != TypeOf(RunPlaced) {
		return Placed{}, false
	}
	var p Placed
	if err := json.Unmarshal(e.Data, &p); err != nil {
		return Placed{}, true
	}
	return p, true
}
