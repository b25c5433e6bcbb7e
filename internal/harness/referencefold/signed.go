package referencefold

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// says reports whether only the daemon may write an event in a fleet with keys.
func says(e *schema.Event) bool {
	switch e.Name() {
	case schema.RunResumed, schema.RunInput, schema.RunCancelRequested, schema.RunPaused, schema.RunOrphaned,
		schema.HandoffAccepted, schema.HandoffDeclined, schema.HandoffClosed, schema.SignalSent:
		return true
	}
	return e.IsControl()
}

// oversteps reports whether an executor may not write an event in a fleet with keys.
func (m *Model) oversteps(e *schema.Event, data schema.Data) bool {
	foreign := func(by, claimed string) bool { return claimed != "" || by != "" && by != m.executor }
	switch d := data.(type) {
	case *schema.ToolDecidedData:
		return strings.ContainsRune(d.By, ':') || strings.Contains(string(d.Extra), `"claimed"`)
	case *schema.CheckpointMarkedData:
		return foreign(d.By, d.Claimed)
	case *schema.ToolSettledData:
		c := m.find(e.Turn, d.ToolCallID, d.Occurrence)
		bare := len(d.Result) == 0 && len(d.Refs) == 0
		own := c == nil || c.replay != schema.ReplayHold ||
			d.How == schema.SettledAdopted && c.late && bare
		return foreign(d.By, d.Claimed) || !own
	}
	return false
}

// begun is when the first of the keys began.
func begun(keys *schema.Keys) int64 {
	var all []int64
	for _, name := range keys.Signers() {
		key, _ := keys.Key(name)
		all = append(all, key.Since)
	}
	return slices.Min(all)
}

// signed reports whether a key of the fleet signed an event, and was in use when the server stored it.
func signed(keys *schema.Keys, e *schema.Event, stored int64) bool {
	key, known := keys.Key(e.Extensions["signer"])
	fleet, _ := source(e)
	if !known || fleet != keys.Fleet() {
		return false
	}
	if stored != 0 && stored < key.Since || key.Until != 0 && (stored == 0 || stored >= key.Until) {
		return false
	}
	bare := *e
	bare.Extensions = maps.Clone(e.Extensions)
	delete(bare.Extensions, "signature")
	content := contentHash(&bare)
	signature, err := base64.RawURLEncoding.Strict().DecodeString(e.Extensions["signature"])
	return err == nil && ed25519.Verify(key.Public, []byte("waymark control event 1\n"+e.ID+"\n"+hex.EncodeToString(content[:])), signature)
}
