package schema

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
)

const (
	// MaxRequests bounds the named requests that a head remembers. It forgets none: a full run is refused further ones.
	MaxRequests = 2304
	// ReservedRequests is the part of [MaxRequests] that signals, answers and settlements leave to other requests.
	ReservedRequests = 256
	// requestName and requestPlace are the lengths of a name and of a stream sequence in [Requests].
	requestName, requestPlace = 12, 8
)

// RequestName names a request in its run by these texts: a repeat has the same name.
func RequestName(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d %s\n", len(p), p) // Write of a hash never fails
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))[:requestName]
}

// RequestNonce is the nonce of a control event that a named request writes. Its end is random: no client can publish
// another message under the id first, which the server would take for the event.
func RequestNonce(name string) string {
	if name == "" {
		return rand.Text()
	}
	return name + "." + rand.Text()
}

// RequestOf returns the name of the request that wrote a control event, "" for none and for an id without the form of
// [RequestNonce].
func RequestOf(e *Event) string {
	if !e.IsControl() {
		return ""
	}
	name, _, named := strings.Cut(strings.TrimPrefix(e.ID, ControlID(e.Subject, e.Epoch, "")), ".")
	if !named || len(name) != requestName || PlainCallID(name) != name {
		return ""
	}
	return name
}

// Requests are the named requests that wrote an accepted event of a run, in log order: for each its name and the stream
// sequence of the event, in base64url.
type Requests string

// Len is the number of the requests.
func (r Requests) Len() int { return len(r) / (requestName + requestPlace) }

// Find returns the stream sequence of the latest event that a request of the name wrote.
func (r Requests) Find(name string) (StreamSequence, bool) {
	for len(r) >= requestName+requestPlace && name != "" {
		last := r[len(r)-requestName-requestPlace:]
		if r = r[:len(r)-len(last)]; string(last[:requestName]) == name {
			b, err := base64.RawURLEncoding.DecodeString(string(last[requestName:]))
			return StreamSequence(binary.BigEndian.Uint64(append(make([]byte, 2, 8), b...))), err == nil
		}
	}
	return 0, false
}

// with returns the requests and the one that wrote an event at a stream sequence.
func (r Requests) with(name string, at StreamSequence) Requests {
	if name == "" || r.Len() >= MaxRequests {
		return r
	}
	return r + Requests(name+base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(at))[2:]))
}
