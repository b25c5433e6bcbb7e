package conform

import "github.com/waymarkio/waymark/schema"

// ReasonRule is the rule of a dead letter's reason.
func ReasonRule(reason schema.Reason) (string, bool) {
	id, ok := reasonRules[reason]
	return id, ok
}
