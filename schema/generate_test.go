package schema_test

import (
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/internal/harness/randomlog"
	"github.com/waymarkio/waymark/schema"
)

func drawLog(t *rapid.T, steps int) []schema.Record { return drawKeyed(t, steps, nil).Records }

// drawKeyed draws a log of run r1 in a fleet with keys; nil for none.
func drawKeyed(t *rapid.T, steps int, keys *schema.Keys) *randomlog.Log {
	cfg := randomlog.Config{Run: "r1", Keys: keys}
	for _, s := range signers {
		cfg.Signers = append(cfg.Signers, randomlog.Signer{Name: s.name, Sign: s.sign})
	}
	return randomlog.Draw(t, cfg, steps)
}
