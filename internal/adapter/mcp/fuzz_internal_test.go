package mcp

import (
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
)

// What the proxy reads out of a call is what it sends: no other reader finds another tool in it.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"name":"charge","arguments":{"to":"Ann","n":12345678901234567890},"_meta":{"callId":"c1"},"task":{}}`))
	f.Add([]byte(`{"name":"read","Name":"charge","name":"x\ud83d"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var c, again params
		if decode(text, &c) != nil {
			return
		}
		sent, err := json.Marshal(&c)
		require.NoError(t, err)
		require.True(t, jsontext.Value(sent).IsValid())
		require.NoError(t, decode(sent, &again))
		require.Equal(t, c.Name, again.Name)
		p := new(proxy)
		require.Equal(t, p.digest(c.Name, c.Arguments), p.digest(again.Name, again.Arguments))
	})
}
