package events

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/schema"
)

// printStructured prints an event as a structured CloudEvent on one line. Its data stays unchanged, because the event's
// id contains its hash.
func printStructured(a *base.App, e *schema.Event) error {
	b, err := e.EncodeStructured()
	if err != nil {
		return fmt.Errorf("event %s: %w", e.ID, err)
	}
	v := jsontext.Value(b)
	if output.IsTerminal(a.Stdout) { // for a program the bytes stay unchanged
		v = output.Escaped(v)
	}
	_, err = a.Stdout.Write(append(v, '\n'))
	return err
}
