package runs

import (
	"context"
	"errors"
	"slices"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// printState prints the full state of a run at a point, as JSON. For a run with missing events it prints the known
// state, and fails. full loads the content in the object store.
func printState(ctx context.Context, a *base.App, cl *base.Client, run string, at schema.Point, full bool) error {
	return cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		state, missing := fleet.GetAt(ctx, run, at)
		if state == nil {
			return missing
		}
		if full {
			if err := fleet.Hydrate(ctx, state); err != nil {
				return errors.Join(err, missing)
			}
		}
		if err := story.OpenHead(ctx, cl, &state.Head); err != nil {
			return err
		}
		return errors.Join(output.Document(a.Stdout, state), missing)
	})
}

// parsePoint reads a point of a run from a flag.
func parsePoint(flag, text string) (schema.Point, error) {
	p, err := schema.ParsePoint(text)
	if err != nil {
		return p, failure.New(failure.Usage, "list a run's points with: waymark runs history RUN", "%s %s", flag, err)
	}
	return p, nil
}

// showAt prints a run at a point of its history.
func showAt(ctx context.Context, a *base.App, cl *base.Client, run string, at schema.Point) error {
	var reply schema.GetReply
	if err := cl.Ask(ctx, schema.VerbGet, run, schema.GetRequest{View: schema.ViewHead, At: at.String()}, &reply); err != nil {
		return err
	}
	if err := story.OpenHead(ctx, cl, &reply.Head); err != nil {
		return err
	}
	if a.JSON {
		if err := output.Document(a.Stdout, &reply); err != nil {
			return err
		}
	} else if err := printHead(a, &reply.Head, reply.Quarantined, nil, "as it was at", at.String(), "events until then", output.Number(reply.At.Records)); err != nil {
		return err
	}
	if !reply.Complete {
		return failure.New(failure.Damaged, "see the existing events: "+cl.Prompt.Command("events "+run+" --all --no-follow"),
			"events of run %s before %s are missing: %s", run, at, output.Plural(len(reply.Gaps), "gap"))
	}
	return nil
}

// storedField is a field for people; for a large field, its location: the object store, because the state does not have
// it.
func storedField(text string, refs []schema.Ref, path string) string {
	i := slices.IndexFunc(refs, func(r schema.Ref) bool { return r.Path == path })
	if i >= 0 && text == "" && refs[i].KeyID == "" {
		return output.Bytes(refs[i].Size) + " in the object store"
	}
	return encryption.ReadableField(text, refs, path)
}

// shortValue is the maximum size of a shown state value, in bytes.
const shortValue = 60

// printValues lists the application state; for a long value it prints the size.
func printValues(a *base.App, values []schema.StateValue) error {
	rows := make([][]string, len(values))
	for i := range values {
		v := &values[i]
		shown := string(v.Value)
		if len(v.Value) > shortValue {
			shown = output.Bytes(int64(len(v.Value)))
		}
		rows[i] = []string{v.Key, storedField(shown, v.Refs, "/value"), output.Number(v.Turn), output.Ago(v.Time, a.Now())}
	}
	return printBelow(a, []output.Column{
		{Title: "state"},
		{Title: "value", Shrinks: true},
		{Title: "turn", Right: true, Drop: 2},
		{Title: "set", Drop: 1},
	}, rows)
}
