package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/answerschema"
	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/schema"
)

// Encryption encrypts the content of events before it leaves this process, and decrypts it when the SDK reads it:
// messages, arguments, results, state, signals, answers, hand-offs, errors, labels. The daemon, the log, checkpoints
// and backups hold cipher text. Ids, names, policies, counts and times stay readable, because the fold and people need
// them; docs/security.md lists both.
//
// Each value names its key. To rotate keys, set another Current: older values are read with the key that they name.
// Keep each key as long as a run uses it; schema.Head.KeyIDs lists them. Values of a lost key cannot be read again.
type Encryption struct {
	// Current is the id of the key for new values. A [Reader] needs none.
	Current string
	// Key returns the key of 32 bytes for an id, and [ErrNoKey] if there is none. It is called once for each key.
	// Required.
	Key func(ctx context.Context, id string) ([]byte, error)
	// ReadableLabels name labels whose values are not encrypted: those by which runs are listed or claimed, such as
	// tenant.
	ReadableLabels []string
}

func (e *Encryption) validate(writes bool) error {
	switch {
	case e == nil:
		return nil
	case e.Key == nil:
		return configError("Encryption.Key", "nil", "set a function that returns the key for an id")
	case writes && e.Current == "", len(e.Current) > schema.MaxIdentifier:
		return configError("Encryption.Current", fmt.Sprintf("%.80q", e.Current), fmt.Sprintf("name the key for new values, in 1 to %d bytes", schema.MaxIdentifier))
	}
	return nil
}

// keys are the encryption keys of a fleet; nil for no encryption.
func (e *Encryption) keys(fleet string) *encryption.Keys {
	if e == nil {
		return nil
	}
	key := func(ctx context.Context, id string) ([]byte, error) {
		secret, err := e.Key(ctx, id)
		if err != nil && !errors.Is(err, ErrNoKey) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err) // where the keys are kept
		}
		return secret, err
	}
	return &encryption.Keys{Fleet: fleet, Current: e.Current, Readable: e.ReadableLabels, Key: key}
}

// KeyFile reads keys from a file: one per line, its id and its 32 bytes in base64, separated by a space. The first is
// the current one. Empty lines and lines that begin with # are ignored. To make a key: openssl rand -base64 32.
func KeyFile(path string) (*Encryption, error) {
	f, err := encryption.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return &Encryption{Current: f.Current, Key: f.Key}, nil
}

// readableLabels refuses claims by labels whose values are encrypted: the daemon would find no run.
func (f *Fleet) readableLabels(labels map[string]string) error {
	if f.cfg.Encryption == nil {
		return nil
	}
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		if !slices.Contains(f.cfg.Encryption.ReadableLabels, label) {
			return configError("Labels", fmt.Sprintf("%.80q", label), "its values are encrypted, so the daemon cannot match them: add it to Encryption.ReadableLabels, or claim without it")
		}
	}
	return nil
}

// keyError says which key is missing or wrong for which content, and what to do.
func keyError(what, id string, cause error) error {
	switch {
	case cause == nil, errors.Is(cause, ErrNoKey):
		return fmt.Errorf("%s: %w with key %s, which is missing: provide the key with that id by Encryption.Key or --key-file", what, ErrEncrypted, id)
	case errors.Is(cause, ErrNotDecrypted):
		return fmt.Errorf("%s: key %s: %w: %w; provide the key that the run was written with; if this is that key, do not trust the run", what, id, ErrEncrypted, cause)
	}
	return fmt.Errorf("%s: key %s: %w: %w", what, id, ErrEncrypted, cause)
}

// openKnown decrypts the content of an event with the known keys; nil without keys.
func (r *Reader) openKnown() func(*schema.Event, schema.Data) {
	if r == nil || r.secrets == nil {
		return nil
	}
	return func(e *schema.Event, data schema.Data) {
		_ = r.secrets.OpenKnown(e, data) // the rest is decrypted when it is read, which returns the error
	}
}

// decrypt decrypts a value that was read with its ref.
func (r *Reader) decrypt(ctx context.Context, ref *schema.Ref, text jsontext.Value) (jsontext.Value, error) {
	if r.secrets == nil || ref.Place == "" {
		return nil, ErrNoKey
	}
	return r.secrets.Value(ctx, ref, text)
}

// Decrypt decrypts the content of an event's data in place, as far as keys are available. Fields that stay encrypted
// keep their refs. It returns [ErrNotDecrypted] of the first value that its key does not open.
func (r *Reader) Decrypt(ctx context.Context, e *schema.Event, data schema.Data) error {
	if r.secrets == nil {
		return nil
	}
	return r.secrets.Open(ctx, e, data)
}

// CheckAnswer validates an answer where the daemon cannot, because question and answer are encrypted. It returns
// [*InvalidAnswerError] if the answer does not match the question. Without keys, or if it does not find the question,
// it leaves the check to the daemon.
func (r *Reader) CheckAnswer(ctx context.Context, run string, in Input) error {
	if r.secrets == nil || r.secrets.Current == "" || in.Status != "" && in.Status != schema.InputResolved {
		return nil
	}
	s, err := r.Get(ctx, run)
	if err != nil && !errors.Is(err, ErrIncomplete) {
		return err
	}
	for i := range slices.Backward(s.Waits) {
		w := &s.Waits[i]
		if w.InterruptID != in.InterruptID || w.Input != nil {
			continue
		}
		asked, err := r.Field(ctx, w.Refs, "/response_schema", w.ResponseSchema)
		if err != nil || len(asked) == 0 {
			return err
		}
		problems, err := answerschema.Check(asked, []byte(in.Payload))
		if err != nil {
			problems = []answerschema.Problem{{Problem: "the response_schema lets no answer through: " + err.Error()}}
		}
		if len(problems) == 0 {
			return nil
		}
		e := &InvalidAnswerError{Said: schema.Fail(schema.CodeInvalidAnswer, "Correct the answer at the places named; response_schema in run.waiting has its format.",
			"the answer to %.80q does not match its schema: at %q: %s", in.InterruptID, problems[0].Path, problems[0].Problem).With(problems)}
		for _, p := range problems {
			e.Places = append(e.Places, InvalidPlace{Path: p.Path, Problem: p.Problem})
		}
		return e
	}
	return nil
}

// hasKeys returns [ErrEncrypted] if a key of the run is missing or unusable.
func (r *Reader) hasKeys(ctx context.Context, head *schema.Head) error {
	if len(head.KeyIDs) == 0 {
		return nil
	}
	if r.secrets == nil {
		return keyError("run "+head.Run, strings.Join(head.KeyIDs, ", "), nil)
	}
	if id, err := r.secrets.Check(ctx, head.KeyIDs...); err != nil {
		return keyError("run "+head.Run, id, err)
	}
	return nil
}

// mayRead returns an error if the run's content cannot be read with the available keys, before the run is taken over.
// It tries the run's first event. Other failures are left to the takeover.
func (f *Fleet) mayRead(ctx context.Context, run string) error {
	head, err := f.Head(ctx, run)
	if err != nil || len(head.KeyIDs) == 0 {
		return nil //nolint:nilerr // the takeover returns it, too
	}
	if err := f.hasKeys(ctx, &head); err != nil {
		return err
	}
	if _, err = f.GetAt(ctx, run, schema.Point{Kind: schema.PointRecord, Number: 1}); errors.Is(err, ErrEncrypted) {
		return err
	}
	return nil
}
