//go:build !waymark_failpoints

package failpoint

import "context"

// Enabled says that this binary has failpoints.
const Enabled = false

// Hit does nothing in this binary.
func Hit(context.Context, Point) error { return nil }
