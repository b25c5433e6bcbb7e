package output

import "github.com/waymarkio/waymark/schema"

// ByLabel is the label of a control event's By.
func ByLabel(by string) string {
	if schema.IsProven(by) {
		return "by"
	}
	return "by (unproven)"
}

// ByText is the sender of a control event, with the claimed name.
func ByText(by, claimed string) string {
	if claimed == "" {
		return by
	}
	return by + " (claims: " + claimed + ")"
}
