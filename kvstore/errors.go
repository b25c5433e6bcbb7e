package kvstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

var (
	// ErrNotFound is returned for a key that does not exist or was deleted. The revision returned with it, if not 0,
	// is that of the deletion; a put must name it.
	ErrNotFound = errors.New("not found")
	// ErrConflict is returned if the key's revision is not the given one: another client wrote it. Read the key again
	// (fresh), and decide again.
	ErrConflict = errors.New("revision conflict")
	// ErrExists is returned when a segment is created that exists already. Read it, verify it, adopt it.
	ErrExists = errors.New("already exists")
	// ErrCorrupt is returned for stored bytes that do not match their own digest or form. It is schema's. Rebuild the
	// value from the log; a put with the revision returned with the error replaces it.
	ErrCorrupt = schema.ErrCorrupt
	// ErrFull is returned if a stream has reached its limit, or the server or account cannot reserve the requested
	// storage. Nothing was stored. Purge sealed events, or raise the limit.
	ErrFull = errors.New("storage full")
	// ErrTooLarge is returned for a value above the stream's or the server's message size. Nothing was stored.
	ErrTooLarge = errors.New("too large")
	// ErrUnavailable is returned if no answer came in time, or the server cannot serve now. The outcome of a write is
	// unknown. Try again.
	ErrUnavailable = errors.New("unavailable")
	// ErrStreamMissing is returned when a stream or bucket that should exist does not. For events, segments
	// and blobs it is an alarm: restore them from a backup. A checkpoint bucket comes back with [Provision].
	ErrStreamMissing = errors.New("stream is missing")
	// ErrSettingsMissing is returned for a fleet without settings whose streams have content: the settings are lost.
	// Restore a backup into an empty server, or name the number of shards to make the settings again, and change the
	// others back.
	ErrSettingsMissing = errors.New("settings are missing")
	// ErrServer is returned for a NATS server that Waymark cannot use; the message says what is needed.
	ErrServer = errors.New("the nats server cannot be used")
	// ErrHeld is returned if another process holds a lease; see [HeldError].
	ErrHeld = errors.New("lease is held")
	// ErrLeaseLost is returned by Renew and Release if another process took the lease over, or it was never held.
	// Stop the work under the lease.
	ErrLeaseLost = errors.New("lease is lost")
	// ErrSettings is returned for fleet settings that are out of range or may not be changed in this way.
	ErrSettings = errors.New("invalid fleet settings")
	// ErrKeysLate is returned for a change of a fleet's keys that was stored so late that readers may not know it
	// when it takes effect. It is stored, and postponed if the message says so. Readers may have checked control
	// events of the time between with either keys.
	ErrKeysLate = errors.New("change of the keys was stored late")
)

// HeldError names the holder of a lease. It matches [ErrHeld].
type HeldError struct {
	// Lease is the lease's name, Holder its holder.
	Lease, Holder string
	// Free: no process holds the lease, which is left to others for a while.
	Free bool
}

// Error names the lease and its holder.
func (e *HeldError) Error() string { return fmt.Sprintf("lease %s is held by %s", e.Lease, e.Holder) }

// Unwrap makes the error match [ErrHeld].
func (e *HeldError) Unwrap() error { return ErrHeld }

// Difference is one flag of a stream with a wrong value.
type Difference struct {
	// Flag is the name in the stream's JSON configuration, such as allow_rollup_hdrs.
	Flag string
	// Want and Have are JSON.
	Want, Have string
}

// ConfigError says that a stream's configuration is not the one Waymark relies on: another client has changed it, or
// created it. Run Command, or find out why the difference is needed.
type ConfigError struct {
	// Stream that differs.
	Stream string
	// Differences in the order of the flags' names, at least one.
	Differences []Difference
	// Command corrects the stream; empty if the server does not allow the flag to be changed back.
	Command string
	// Hint is the next step if there is no command.
	Hint string
}

// Error names the stream, each flag with its expected and actual value, and the command.
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

// noPeers is a cluster leader's error if there are too few servers for the replicas, or if it has just started and
// does not know the others yet; otherwise further words give the reason.
const noPeers = "no suitable peers for placement"

// MayCome reports whether provisioning should be tried again soon, while servers are starting: they do not answer,
// one of them is away, or their leader may not know all of them yet.
func MayCome(err error) bool {
	if errors.Is(err, ErrUnavailable) {
		return true
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == jsapi.CodeNoPeers && api.Description == noPeers
}

// translate wraps err in this package's sentinel for it. It knows every error of the calls in this package; other
// errors are returned unchanged.
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
		// Too few servers for the replicas; the text gives the reason. A server that is away or not yet known will
		// come.
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
