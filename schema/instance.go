package schema

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"strings"
)

// instancePrefix begins instance names that are public keys.
const instancePrefix = "ed25519-"

// HeaderSignature has the signature of a heartbeat; see [SignHeartbeat].
const HeaderSignature = "Waymark-Signature"

// Errors of [CheckHeartbeat].
var (
	errNotSigned      = errors.New("the instance is a public key, and the heartbeat has no signature of it")
	errWrongSignature = errors.New("the heartbeat is not signed with the key of its instance")
)

// InstanceOf returns the name of an instance that signs its heartbeats with a key. Each process makes its own key at start
// and keeps the private half in memory. Executors of a fleet share the credentials of the server, so without a signature
// one could send heartbeats in the name of another: to keep the runs of a dead process from recovery, or to abandon those
// of a live one.
func InstanceOf(key ed25519.PublicKey) string {
	return instancePrefix + base64.RawURLEncoding.EncodeToString(key)
}

// InstanceKey returns the public key in an instance name; ok is false for a name without a key.
func InstanceKey(instance string) (key ed25519.PublicKey, ok bool) {
	text, ok := strings.CutPrefix(instance, instancePrefix)
	if !ok {
		return nil, false
	}
	key, err := base64.RawURLEncoding.Strict().DecodeString(text)
	return key, err == nil && len(key) == ed25519.PublicKeySize
}

// SignHeartbeat returns the signature of a heartbeat, for [HeaderSignature].
func SignHeartbeat(key ed25519.PrivateKey, subject string, body []byte) string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, signedHeartbeat(subject, body)))
}

// CheckHeartbeat returns an error unless a heartbeat has the signature that its instance requires. An instance whose name
// is no key requires none.
func CheckHeartbeat(instance, subject string, body []byte, signature string) error {
	key, ok := InstanceKey(instance)
	if !ok {
		return nil
	}
	if signature == "" {
		return errNotSigned
	}
	sum, err := base64.RawURLEncoding.Strict().DecodeString(signature)
	if err != nil || !ed25519.Verify(key, signedHeartbeat(subject, body), sum) {
		return errWrongSignature
	}
	return nil
}

// signedHeartbeat is what the signature covers: the subject names fleet and executor.
func signedHeartbeat(subject string, body []byte) []byte {
	return append([]byte("waymark heartbeat\n"+subject+"\n"), body...)
}
