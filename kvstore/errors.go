package kvstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/jsapi"
	"github.com/waymarkio/waymark/schema"
)

var (
	// ErrNotFound is returned for a key that does not exist or was deleted. The revision returned beside it,
	// if not 0, is that of the deletion; a put must name it.
	ErrNotFound = errors.New("not found")
	// ErrConflict is returned when the key's revision is not the one the caller named: somebody else wrote.
	// Read the key again (fresh), and decide again.
	ErrConflict = errors.New("revision conflict")
	// ErrExists is returned when a segment is created that exists already. Read it, verify it, adopt it.
	ErrExists = errors.New("already exists")
	// ErrCorrupt is returned for stored bytes that do not match their own digest or form. It is schema's.
	// Rebuild the value from the log; a put with the revision returned beside the error replaces it.
	ErrCorrupt = schema.ErrCorrupt
	// ErrFull is returned when a stream has reached its limit, or the server or account cannot reserve the
	// storage asked for. Nothing was stored. Purge what is sealed, or raise the limit.
	ErrFull = errors.New("storage full")
	// ErrTooLarge is returned for a value above the stream's or the server's message size. Nothing was stored.
	ErrTooLarge = errors.New("too large")
	// ErrUnavailable is returned when no answer came in time, or the server cannot serve now. Of a write the
	// outcome is unknown. Try again.
	ErrUnavailable = errors.New("unavailable")
	// ErrStreamMissing is returned when a stream or bucket that should exist does not. For events, segments
	// and blobs it is an alarm: restore them from a backup. A checkpoint bucket comes back with [Provision].
	ErrStreamMissing = errors.New("stream is missing")
	// ErrHeld is returned when somebody else holds a lease; see [HeldError].
	ErrHeld = errors.New("lease is held")
	// ErrLeaseLost is returned by Renew and Release when somebody else took the lease over, or it was never
	// held. Stop the work that it covers.
	ErrLeaseLost = errors.New("lease is lost")
	// ErrSettings is returned for fleet settings that are out of range or may not be changed so.
	ErrSettings = errors.New("invalid fleet settings")
	// ErrKeysLate is returned for a change of a fleet's keys that was stored so late that readers may not know it when it was to take effect.
	// It is stored all the same, and put off if the message says so. Readers may have judged control events of the time between by either keys.
	ErrKeysLate = errors.New("change of the keys was stored late")
	// ErrGenerations is returned for one number of shards more than [MaxGenerations]: use one of those the fleet has had.
	ErrGenerations = errors.New("too many generations of shards")
)

// HeldError says who holds a lease. It matches [ErrHeld].
type HeldError struct {
	// Lease is the lease's name, Holder who holds it.
	Lease, Holder string
}

// Error names the lease and its holder.
func (e *HeldError) Error() string { return fmt.Sprintf("lease %s is held by %s", e.Lease, e.Holder) }

// Unwrap makes the error match [ErrHeld].
func (e *HeldError) Unwrap() error { return ErrHeld }

// Difference is one flag of a stream that is not as it must be.
type Difference struct {
	// Flag is the name in the stream's JSON configuration, such as allow_rollup_hdrs.
	Flag string
	// Want and Have are JSON.
	Want, Have string
}

// ConfigError says that a stream's configuration is not the one Waymark relies on: another client has
// changed it, or created it. Run Command, or find out who needs the difference.
type ConfigError struct {
	// Stream that differs.
	Stream string
	// Differences in the order of the flags' names, at least one.
	Differences []Difference
	// Command mends the stream; empty when the server does not allow the flag to be changed back.
	Command string
	// Hint says what to do when there is no command.
	Hint string
}

// Error names the stream, each flag with what is wanted and what is there, and what mends it.
func (e *ConfigError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "stream %s is not configured as it must be:", e.Stream)
	for i, d := range e.Differences {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %s is %s, want %s", d.Flag, d.Have, d.Want)
	}
	if e.Command != "" {
		fmt.Fprintf(&b, "; to mend it run: %s", e.Command)
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, "; %s", e.Hint)
	}
	return b.String()
}

// noPeers is all that a cluster's leader says when there are too few servers for the replicas, or it has just begun and does not know
// the others yet; otherwise words behind it tell why.
const noPeers = "no suitable peers for placement"

// MayCome reports whether whoever provisions, beside servers that are being started, should try again in a moment: they do not
// answer, one of them is away, or their leader may not know all of them yet.
func MayCome(err error) bool {
	if errors.Is(err, ErrUnavailable) {
		return true
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == jsapi.CodeNoPeers && api.Description == noPeers
}

// translate puts the sentinel of this package that err stands for in front of it. It knows every error
// that the calls of this package can get; others pass as they are.
func translate(err error) error {
	kind := kindOf(err)
	if kind == nil || errors.Is(err, kind) {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

func kindOf(err error) error {
	if err == nil {
		return nil
	}
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return kindOfAPI(api)
	}
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return ErrNotFound
	case errors.Is(err, nats.ErrMaxPayload):
		return ErrTooLarge
	case errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, nats.ErrTimeout),
		errors.Is(err, nats.ErrNoResponders),
		errors.Is(err, nats.ErrDisconnected),
		errors.Is(err, nats.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionReconnecting),
		errors.Is(err, nats.ErrConnectionDraining),
		errors.Is(err, nats.ErrReconnectBufExceeded),
		errors.Is(err, nats.ErrStaleConnection),
		errors.Is(err, jsapi.ErrAnswer),
		errors.Is(err, jetstream.ErrNoStreamResponse),
		errors.Is(err, jetstream.ErrAsyncPublishTimeout),
		errors.Is(err, jetstream.ErrTooManyStalledMsgs),
		errors.Is(err, jetstream.ErrJetStreamPublisherClosed),
		errors.Is(err, jetstream.ErrConnectionClosed):
		return ErrUnavailable
	}
	return nil
}

func kindOfAPI(api *jetstream.APIError) error {
	switch api.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return ErrConflict
	case jetstream.JSErrCodeStreamNotFound:
		return ErrStreamMissing
	case jetstream.JSErrCodeMessageNotFound:
		return ErrNotFound
	case jetstream.JSErrCodeStreamMessageExceedsMaximum, jsapi.CodeHeaderTooLarge:
		return ErrTooLarge
	case jsapi.CodeInsufficientResources, jsapi.CodeMemoryExceeded, jsapi.CodeStorageExceeded, jsapi.CodeStreamBytesRequired, jsapi.CodeStreamMaxBytesExceeded:
		return ErrFull
	case jsapi.CodeNoPeers:
		// Too few servers for the replicas: words tell why. One that is away, or does not yet know the others, comes.
		switch {
		case strings.Contains(api.Description, "peer offline"):
			return ErrUnavailable
		case strings.Contains(api.Description, "insufficient storage"):
			return ErrFull
		}
		return nil
	case jsapi.CodeStoreFailed:
		if jsapi.StreamFull(api) {
			return ErrFull
		}
		return ErrUnavailable
	default:
	}
	if api.Code == 503 || api.Code == 408 {
		return ErrUnavailable
	}
	return nil
}
