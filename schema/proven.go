package schema

import (
	"reflect"
	"strings"
)

// MaxBy is the longest By of a control event or a removal, in bytes: a role and a public NKey, or a name.
const MaxBy = 80

// ProvenBy is the By of a sender that the NATS server proved: role and public key, such as operator:UBOL…. Names have
// no colon, so a claimed name never looks like a proven one.
func ProvenBy(role, key string) string { return role + ":" + key }

// IsProven reports whether By names a key that the NATS server verified. Any other By is the name in the request, a
// claim.
//
// This holds for control events and removals, which the daemon writes. An executor may write anything into its own
// events.
func IsProven(by string) bool {
	role, key, ok := strings.Cut(by, ":")
	return ok && role != "" && key != ""
}

// DecidedBy returns By and Claimed of a control event's data: the sender of the decision, and the name in its
// request. They are empty for other data.
func DecidedBy(data Data) (by, claimed string) {
	v := reflect.Indirect(reflect.ValueOf(data))
	if v.Kind() != reflect.Struct || !v.FieldByName("Claimed").IsValid() {
		return "", ""
	}
	return v.FieldByName("By").String(), v.FieldByName("Claimed").String()
}
