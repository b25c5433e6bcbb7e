package jsapi

import (
	"errors"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Error codes of the server without a name in nats.go. Its own are in package jetstream, as JSErrCode….
const (
	CodeAccountResources       jetstream.ErrorCode = 10002
	CodeNoPeers                jetstream.ErrorCode = 10005
	CodeInsufficientResources  jetstream.ErrorCode = 10023
	CodeMemoryExceeded         jetstream.ErrorCode = 10028
	CodeSequenceNotFound       jetstream.ErrorCode = 10043
	CodeStorageExceeded        jetstream.ErrorCode = 10047
	CodeDeleteFailed           jetstream.ErrorCode = 10057
	CodeStoreFailed            jetstream.ErrorCode = 10077
	CodeHeaderTooLarge         jetstream.ErrorCode = 10097
	CodeStreamBytesRequired    jetstream.ErrorCode = 10113
	CodeStreamMaxBytesExceeded jetstream.ErrorCode = 10122
	// CodeDuplicateInFlight: a message with the same id is being stored.
	CodeDuplicateInFlight jetstream.ErrorCode = 10158
	// CodeNotReady: the subject's last message is not yet known to the leader.
	CodeNotReady jetstream.ErrorCode = 10163
)

// StreamFull reports whether a message was not stored because its stream has reached its limit. The server has one
// code for all failures of its store, and distinguishes them only by text.
func StreamFull(err error) bool {
	e, ok := errors.AsType[*jetstream.APIError](err)
	return ok && e.ErrorCode == CodeStoreFailed && strings.Contains(e.Description, "maximum ") && strings.Contains(e.Description, "exceeded")
}
