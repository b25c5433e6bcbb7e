package archive

import (
	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/schema"
)

// keysName is the first entry of an archive of a fleet with keys: the runs after it are folded with them.
const keysName = "keys.json"

// maxKeysEntry bounds that entry.
const maxKeysEntry = 64 << 10

// fleetKeys are the keys of the archive's fleet.
type fleetKeys struct {
	Fleet string            `json:"fleet"`
	Keys  []schema.FleetKey `json:"keys"`
}

// addKeys writes the fleet's keys; a fleet without keys has no such entry.
func (x *exporter) addKeys() error {
	keys, err := keyring.Parse(x.what.Fleet, x.what.Keys)
	if err != nil {
		return err
	}
	x.keys = keys
	if !keys.Any() {
		return nil
	}
	b, err := json.Marshal(fleetKeys{Fleet: x.what.Fleet, Keys: x.what.Keys}, json.Deterministic(true))
	if err != nil {
		return err
	}
	return x.add(keysName, b)
}

// readKeys reads the keys of an archive.
func readKeys(content []byte) (*schema.Keys, error) {
	var said fleetKeys
	if err := json.Unmarshal(content, &said); err != nil {
		return nil, damaged(keysName, "it cannot be read: %s", err)
	}
	keys, err := keyring.Parse(said.Fleet, said.Keys)
	if err != nil {
		return nil, hostile(keysName, "%s", err)
	}
	if !keys.Any() {
		return nil, hostile(keysName, "it has no key")
	}
	return keys, nil
}
