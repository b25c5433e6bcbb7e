package session

import "github.com/waymarkio/waymark/schema"

// Failure is the failure of a call that another program reports, recorded as it is.
type Failure schema.Error

func (f Failure) Error() string { return f.Message }

// ToolFailure makes it a publisher.Failure.
func (f Failure) ToolFailure() schema.Error { return schema.Error(f) }
