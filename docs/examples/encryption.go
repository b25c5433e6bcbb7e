package examples

import (
	"context"

	"github.com/waymarkio/waymark/publisher"
)

// snippet: encryption

// Sealed is the configuration of an executor whose content only holders of the keys can read. The vault returns a key
// of 32 bytes for an id, and publisher.ErrNoKey if there is none.
func Sealed(executor string, vault func(ctx context.Context, id string) ([]byte, error)) publisher.Config {
	return publisher.Config{
		Executor: executor, Agent: "clerk",
		Encryption: &publisher.Encryption{
			Current:        "2026-11",        // for new values; older values name their key
			Key:            vault,            // or use publisher.KeyFile to read keys from a file
			ReadableLabels: []string{"team"}, // runs can be listed by this label
		},
	}
}

// end of encryption
