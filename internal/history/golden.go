package history

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// goldenFormat is the format version of files of calls.
const goldenFormat = 1

// Golden is a run's calls in a file, to compare later replays with.
type Golden struct {
	// Format is 1.
	Format int    `json:"format"`
	Run    string `json:"run"`
	// Point up to which the calls are.
	Point string `json:"point"`
	Steps []Step `json:"steps"`
}

// Encode writes the file.
func (g *Golden) Encode() ([]byte, error) {
	g.Format = goldenFormat
	b, err := json.Marshal(g, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return nil, fmt.Errorf("calls of run %s: %w", g.Run, err)
	}
	return append(b, '\n'), nil
}

// DecodeGolden reads the file.
func DecodeGolden(b []byte) (*Golden, error) {
	g := new(Golden)
	if err := json.Unmarshal(b, g); err != nil {
		return nil, fmt.Errorf("file of calls: %w", err)
	}
	if g.Format != goldenFormat {
		return nil, fmt.Errorf("file of calls: format %d, this version reads %d", g.Format, goldenFormat)
	}
	return g, nil
}
