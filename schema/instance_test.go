package schema_test

import (
	"crypto/ed25519"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestCheckHeartbeat_WrongSignature_Refused(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	instance, subject, body := schema.InstanceOf(public), schema.HeartbeatSubject("f", "e"), []byte("{}")
	require.True(t, schema.ValidName(instance))
	key, ok := schema.InstanceKey(instance)
	require.True(t, ok)
	require.Equal(t, public, key)
	signature := schema.SignHeartbeat(private, subject, body)
	require.NoError(t, schema.CheckHeartbeat(instance, subject, body, signature))
	require.NoError(t, schema.CheckHeartbeat("i1", subject, body, ""), "a name that is no key")
	for name, err := range map[string]error{
		"another subject":   schema.CheckHeartbeat(instance, schema.HeartbeatSubject("g", "e"), body, signature),
		"another body":      schema.CheckHeartbeat(instance, subject, []byte("{ }"), signature),
		"another instance":  schema.CheckHeartbeat(schema.InstanceOf(append(ed25519.PublicKey{0}, public[1:]...)), subject, body, signature),
		"no signature":      schema.CheckHeartbeat(instance, subject, body, ""),
		"half a signature":  schema.CheckHeartbeat(instance, subject, body, signature[:20]),
		"not its own form":  schema.CheckHeartbeat(instance, subject, body, signature+"="),
		"not even encoding": schema.CheckHeartbeat(instance, subject, body, "\x00"),
	} {
		require.Error(t, err, name)
	}
	for _, other := range []string{"", "i1", "ed25519-", "ed25519-AAAA", instance + "A", "ED25519-" + instance[8:]} {
		_, ok := schema.InstanceKey(other)
		require.False(t, ok, other)
	}
}
