package examples

import (
	"context"

	"github.com/waymarkio/waymark/publisher"
)

// snippet: encryption

// Sealed is the configuration of an executor whose content only holders of the keys can read. The vault returns a key of 32
// bytes by its id, and publisher.ErrNoKey for one that is not there.
func Sealed(executor string, vault func(ctx context.Context, id string) ([]byte, error)) publisher.Config {
	return publisher.Config{
		Executor: executor, Agent: "clerk",
		Encryption: &publisher.Encryption{
			Current:        "2026-11",        // new values; those of earlier keys are read by the id that each value has
			Key:            vault,            // publisher.KeyFile reads keys from a file instead
			ReadableLabels: []string{"team"}, // runs can be listed by it
		},
	}
}

// end of encryption
