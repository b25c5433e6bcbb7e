package schema

import (
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Code is the stable code string of a service error.
type Code string

// Codes of service errors.
const (
	CodeBadRequest   Code = "bad_request"
	CodeForbidden    Code = "forbidden"
	CodeNotFound     Code = "run_not_found"
	CodeConflict     Code = "conflict"
	CodeRunEnded     Code = "run_ended"
	CodeWrongAgent   Code = "wrong_agent"
	CodeTooLarge     Code = "too_large"
	CodeOverloaded   Code = "overloaded"
	CodeInternal     Code = "internal"
	CodeUnavailable  Code = "unavailable"
	CodeDamaged      Code = "damaged"
	CodeStorageFull  Code = "storage_full"
	CodeNotInDoubt   Code = "not_in_doubt"
	CodeUnknownFleet Code = "unknown_fleet"
	// CodeUnknownInterrupt: the run does not wait for this, or no longer.
	CodeUnknownInterrupt Code = "unknown_interrupt"
	// CodeInvalidAnswer: the run's response_schema does not allow the answer; details name the places.
	CodeInvalidAnswer Code = "invalid_answer"
	// CodeUnknownHandoff: the run has no such open hand-off.
	CodeUnknownHandoff Code = "unknown_handoff"
	// CodeTooManySignals: the run already has [MaxSignals] open signals.
	CodeTooManySignals Code = "too_many_signals"
	// CodeRunFull: the run has taken [MaxRequests] requests with an id.
	CodeRunFull Code = "run_full"
	// CodeHandoffTaken: another run accepted the offer, or the hash is not that of the offer.
	CodeHandoffTaken Code = "handoff_taken"
	// CodeQuarantined: a claim by name of a run whose claims made no progress.
	CodeQuarantined Code = "quarantined"
	// CodePaused: a pause selects the run, so no executor is given it.
	CodePaused Code = "paused"
	// CodePointNotFound: the run has no such point; details list the existing ones.
	CodePointNotFound Code = "point_not_found"
	// CodePointAmbiguous: the run has the point more than once; details list them.
	CodePointAmbiguous Code = "point_ambiguous"
	// CodePointPurged: the events of the point, or some before it, are no longer stored.
	CodePointPurged Code = "point_purged"
	// CodeErased: the run was removed; its id is never used again.
	CodeErased Code = "erased"
	// CodeNeeded: something still needs the run that should be removed; details say what, and name the forks.
	CodeNeeded Code = "needed"
)

// HTTPStatus is the number for Nats-Service-Error-Code.
func (c Code) HTTPStatus() int {
	switch c {
	case CodeBadRequest:
		return http.StatusBadRequest
	case CodeForbidden, CodeWrongAgent:
		return http.StatusForbidden
	case CodeNotFound, CodeUnknownFleet, CodeUnknownInterrupt, CodeUnknownHandoff, CodePointNotFound:
		return http.StatusNotFound
	case CodeInvalidAnswer:
		return http.StatusUnprocessableEntity
	case CodeConflict, CodeRunEnded, CodeNotInDoubt, CodeHandoffTaken, CodeQuarantined, CodePaused, CodePointAmbiguous, CodeNeeded, CodeRunFull:
		return http.StatusConflict
	case CodePointPurged, CodeErased:
		return http.StatusGone
	case CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case CodeOverloaded, CodeTooManySignals:
		return http.StatusTooManyRequests
	case CodeUnavailable:
		return http.StatusServiceUnavailable
	case CodeStorageFull:
		return http.StatusInsufficientStorage
	default:
		return http.StatusInternalServerError
	}
}

// ServiceError is the body of an error reply. The client SDK returns it unchanged.
type ServiceError struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Hint is the next step.
	Hint    string         `json:"hint,omitzero"`
	Details jsontext.Value `json:"details,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// Fail returns an error reply with a code, the next step, and a message.
func Fail(code Code, hint, format string, args ...any) *ServiceError {
	return &ServiceError{Code: code, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// With adds details, which must be encodable as JSON, and returns the error.
func (e *ServiceError) With(details any) *ServiceError {
	e.Details, _ = json.Marshal(details, json.Deterministic(true)) // without details it says the same in words
	return e
}

// Error is the message, the code and the hint.
func (e *ServiceError) Error() string {
	s := fmt.Sprintf("%s (%s)", e.Message, e.Code)
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}
