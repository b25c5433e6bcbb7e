package publisher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/blob"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// maxHydrate is the maximum that one Hydrate loads, as a multiple of the largest blob size.
const maxHydrate = 8

// prepare makes the body of a draft's event. It redacts and encrypts the content, and moves large fields to the blob
// store.
func (f *Fleet) prepare(ctx context.Context, run string, d *draft) (err error) {
	body, err := schema.MarshalData(d.data)
	if err != nil {
		return err
	}
	data := d.data
	if f.redactor != nil {
		if data, body, err = f.redact(data, body); err != nil {
			return err
		}
	}
	if f.secrets != nil {
		if data, err = f.secrets.Encrypt(ctx, run, d.turn, data, body, d.invented); err == nil {
			body, err = schema.MarshalData(data)
		}
		if err != nil {
			return fmt.Errorf("encryption of %s: %w", d.data.EventName(), err)
		}
		d.data = data // this handle folds the same data as every other reader
	}
	began := time.Now()
	if d.body, d.dataref, err = f.moveLarge(ctx, run, data, body); d.dataref != "" {
		d.put = began
	}
	d.exact = f.redactor == nil && f.secrets == nil && d.dataref == ""
	return err
}

// moveLarge moves large fields to the blob store. It returns the body without them, and the dataref of the first one.
func (f *Fleet) moveLarge(ctx context.Context, run string, data schema.Data, in []byte) (body []byte, dataref string, err error) {
	body = in
	if len(body) <= DefaultInlineLimit || f.unrecorded() {
		return body, "", nil
	}
	name := data.EventName()
	moved, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(name), DataContentType: schema.ContentTypeJSON, Data: body}) // a copy
	if err != nil {
		return nil, "", err
	}
	type large struct {
		schema.Content
		text jsontext.Value
	}
	var fields []large
	for _, c := range schema.Contents(moved) {
		text, err := c.JSON()
		if err != nil {
			return nil, "", fmt.Errorf("%s of %s: %w", c.Path, name, err)
		}
		if c.Large && len(text) > 0 {
			fields = append(fields, large{c, text})
		}
	}
	slices.SortStableFunc(fields, func(a, b large) int { return len(b.text) - len(a.text) })
	refs := schema.RefsOf(moved)
	// Move the largest fields first. A field must be larger than the reference that replaces it.
	const least, reference = 512, 192
	total := len(body)
	for _, fd := range fields {
		if len(fd.text) <= DefaultInlineLimit && (total <= eventTarget || len(fd.text) < least) {
			break
		}
		ref, err := f.putBlob(ctx, run, fd.text)
		if err == nil {
			err = fd.Set(nil)
		}
		if err != nil {
			return nil, "", fmt.Errorf("%s of %s: %w", fd.Path, name, err)
		}
		ref.Path = fd.Path
		*refs = withRef(*refs, ref)
		if dataref == "" {
			dataref = ref.DataRef
		}
		total -= len(fd.text) - reference
	}
	if dataref == "" {
		return body, "", f.tooLarge(data, body)
	}
	if body, err = schema.MarshalData(moved); err != nil {
		return nil, "", err
	}
	return body, dataref, f.tooLarge(moved, body)
}

// withRef adds a ref. An encrypted field already has one, which is completed.
func withRef(refs []schema.Ref, ref schema.Ref) []schema.Ref {
	i := slices.IndexFunc(refs, func(r schema.Ref) bool { return r.Path == ref.Path })
	if i < 0 {
		return append(refs, ref)
	}
	refs[i].DataRef, refs[i].Size = ref.DataRef, ref.Size
	return refs
}

// tooLarge is the error for a body that exceeds the message limit. It names the largest field.
func (f *Fleet) tooLarge(data schema.Data, body []byte) error {
	if limit := min(eventLimit, int(f.nc.MaxPayload())-8<<10); len(body) > limit {
		return payloadError(data.EventName(), len(body), limit, body)
	}
	return nil
}

// payloadError is the error of an event above a limit.
func payloadError(event string, total, limit int, body []byte) error {
	field, size := largestField(body)
	return fmt.Errorf("%w: %s has %d bytes, the limit is %d; its largest field %s has %d bytes: shorten it, or publish it as an artifact",
		ErrPayloadTooLarge, event, total, limit, field, size)
}

// largestField is the largest member of an event's data, as a JSON Pointer, and its size.
func largestField(body []byte) (path string, size int) {
	var members map[string]jsontext.Value
	if err := json.Unmarshal(body, &members); err != nil {
		return "", len(body)
	}
	for name, member := range members {
		if len(member) > size {
			path, size = "/"+name, len(member)
		}
	}
	return path, size
}

// blobs is the fleet's object store.
func (r *Reader) blobs() *blob.Store { return blob.New(r.js, schema.BlobBucket(r.opts.Fleet)) }

// blobError is the error of a request to the object store about a blob; nil for none.
func (r *Reader) blobError(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrBucketNotFound):
		return fmt.Errorf("%w: fleet %s has no object store %s for large fields", ErrNotProvisioned, r.opts.Fleet, schema.BlobBucket(r.opts.Fleet))
	case errors.Is(err, blob.ErrTooLarge):
		return fmt.Errorf("%w: %s: %w; raise MaxBlob", ErrBlob, name, err)
	case errors.Is(err, blob.ErrChanged), errors.Is(err, jetstream.ErrObjectNotFound):
		return fmt.Errorf("%w: %s: %w", ErrBlob, name, err)
	}
	return fmt.Errorf("blob %s: %w: %w", name, ErrUnavailable, err)
}

// putBlob stores text under the name of its content and returns the reference. The blob must be durable before the
// event that refers to it is published.
func (f *Fleet) putBlob(ctx context.Context, run string, text []byte) (schema.Ref, error) {
	sum := sha256.Sum256(text)
	digest := hex.EncodeToString(sum[:])
	ref := schema.Ref{DataRef: schema.DataRef(run, digest), Size: int64(len(text))}
	// A try may take as long as a slow transfer. A repeated put is safe, because the name is the content's hash.
	most := f.cfg.TryTimeout + time.Duration(len(text))*time.Second/blobPace
	name, stream := schema.BlobName(run, digest), "OBJ_"+schema.BlobBucket(f.cfg.Fleet)
	put := func() (err error) {
		var full *refusedFull
		err = f.insist(ctx, schema.BlobBucket(f.cfg.Fleet), most, func(try context.Context) error {
			err := f.blobs().Put(try, run, digest, text)
			if full = nil; eventlog.ResourcesExhausted(err) {
				full = &refusedFull{err}
				return full
			}
			return f.blobError(name, err)
		})
		if full != nil {
			return full
		}
		return err
	}
	err := put()
	if full, ok := err.(*refusedFull); ok { //nolint:errorlint // never wrapped
		err = f.awaitSpace(ctx, stream, full.answer, func() error {
			// A part of the content would use up the room of all that wait.
			if now := f.fullError(ctx, stream, full.answer); now.Quota > 0 && now.Quota-now.Used < int64(len(text)) {
				return full
			}
			return put()
		})
	}
	if err == nil {
		f.kept.add(name, text)
	}
	return ref, err
}

// blobPace is the minimum transfer rate of a blob, in bytes a second, that the timeout of a put assumes.
const blobPace = 1 << 20

// Blob loads the blob that a dataref names, at most Config.MaxBlob bytes, and checks its SHA-256. It accepts only the
// scheme waymark-blob. While the blob store does not answer, it asks again until Config.RequestTimeout is over. It
// returns [ErrBlob], [ErrUnavailable], [ErrNotPermitted] and [ErrNotProvisioned]. A [Fleet] returns blobs that it keeps
// in memory without a request.
func (r *Reader) Blob(ctx context.Context, dataref string) ([]byte, error) {
	run, digest, err := schema.ParseDataRef(dataref)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBlob, err)
	}
	name := schema.BlobName(run, digest)
	if r.js == nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrBlob, name, ErrUnrecorded)
	}
	content := r.kept.get(name)
	if content != nil {
		return content, nil
	}
	err = r.insist(ctx, schema.BlobBucket(r.opts.Fleet), r.opts.RequestTimeout, func(ctx context.Context) error {
		content, err = r.blobs().Load(ctx, run, digest, r.opts.MaxBlob)
		return r.blobError(name, err)
	})
	if err == nil {
		r.kept.add(name, content)
	}
	return content, err
}

// Hydrate loads the large fields of a state from the blob store, in place, decrypts them, and removes their refs. A
// field without an available key keeps its ref, without the dataref. Each content is checked against its name. All
// blobs together may have eight times Config.MaxBlob.
func (r *Reader) Hydrate(ctx context.Context, s *schema.State) (err error) {
	left := maxHydrate * r.opts.MaxBlob
	eachPart(s, func(_ string, refs *[]schema.Ref, part any) {
		contents := schema.Contents(part)
		var rest []schema.Ref // those of values that stay encrypted
		for _, ref := range *refs {
			i := slices.IndexFunc(contents, func(c schema.Content) bool { return c.Large && c.Path == ref.Path })
			done := false
			if err == nil && i >= 0 && (ref.DataRef != "" || ref.Place != "" && r.secrets != nil) {
				done, err = r.fill(ctx, &ref, &contents[i], &left)
			}
			if !done {
				rest = append(rest, ref)
			}
		}
		*refs = rest
	})
	return err
}

// eachPart calls do for each part of a state that has refs. Parts that several copies of a state share are replaced by
// copies.
func eachPart(s *schema.State, do func(what string, refs *[]schema.Ref, part any)) {
	some := func(what string, refs *[]schema.Ref, part any) {
		if len(*refs) > 0 {
			do(what, refs, part)
		}
	}
	for i := range s.Messages {
		if m := &s.Messages[i]; len(m.Refs) > 0 {
			m.Parts = slices.Clone(m.Parts)
			do(fmt.Sprintf("message %d", i+1), &m.Refs, &m.Message)
		}
	}
	for i := range s.Calls {
		c := &s.Calls[i]
		some("call "+c.ToolCallID, &c.Refs, c)
		if own(&c.Late, func(d *schema.LateResult) []schema.Ref { return d.Refs }) {
			do("late result of call "+c.ToolCallID, &c.Late.Refs, c.Late)
		}
	}
	for i := range s.Turns {
		if t := &s.Turns[i]; own(&t.Answer, func(d *schema.StateAnswer) []schema.Ref { return d.Refs }) {
			do(fmt.Sprintf("answer of turn %d", t.Turn), &t.Answer.Refs, t.Answer)
		}
	}
	for i := range s.Phases {
		some("phase "+s.Phases[i].Phase, &s.Phases[i].Refs, &s.Phases[i])
	}
	for i := range s.Compactions {
		some("context.compacted", &s.Compactions[i].Refs, &s.Compactions[i].ContextCompactedData)
	}
	for i := range s.Waits {
		w := &s.Waits[i]
		some("question "+w.InterruptID, &w.Refs, &w.RunWaitingData)
		if own(&w.Input, func(d *schema.RunInputData) []schema.Ref { return d.Refs }) {
			do("answer to "+w.InterruptID, &w.Input.Refs, w.Input)
		}
	}
	for i := range s.Values {
		some("state "+s.Values[i].Key, &s.Values[i].Refs, &s.Values[i])
	}
	for i := range s.Signals {
		some("signal "+s.Signals[i].SignalID, &s.Signals[i].Refs, &s.Signals[i].SignalSentData)
	}
	for i := range s.Artifacts {
		some("artifact "+s.Artifacts[i].ArtifactID, &s.Artifacts[i].Refs, &s.Artifacts[i].ArtifactAddedData)
	}
	if own(&s.Started, func(d *schema.RunStartedData) []schema.Ref { return d.Refs }) {
		s.Started.State = slices.Clone(s.Started.State)
		do("run.started", &s.Started.Refs, s.Started)
	}
	if own(&s.Ended, func(d *schema.RunEndedData) []schema.Ref { return d.Refs }) {
		do("run.ended", &s.Ended.Refs, s.Ended)
	}
}

// own replaces a part that has refs by a copy, and reports whether it has.
func own[T any](part **T, refs func(*T) []schema.Ref) bool {
	if *part == nil || len(refs(*part)) == 0 {
		return false
	}
	c := **part
	*part = &c
	return true
}

// Field returns the value of a field of an event's data or of the state. inline is the field's value there. The value
// may be in the blob store, encrypted, or both. It returns [ErrEncrypted] without the key, [ErrNotDecrypted], and the
// errors of [Reader.Blob].
func (r *Reader) Field(ctx context.Context, refs []schema.Ref, path string, inline []byte) ([]byte, error) {
	i := slices.IndexFunc(refs, func(ref schema.Ref) bool { return ref.Path == path })
	if i < 0 || len(inline) > 0 && refs[i].KeyID == "" {
		return inline, nil
	}
	value, plain, err := r.value(ctx, &refs[i], inline)
	if err == nil && !plain {
		return nil, keyError(path, refs[i].KeyID, nil)
	}
	return value, err
}

// value returns the content of a ref, which is inline or in the blob store, and whether it is plain: without its key it
// is cipher text.
func (r *Reader) value(ctx context.Context, ref *schema.Ref, inline []byte) (content []byte, plain bool, err error) {
	if content = inline; len(content) == 0 {
		if content, err = r.Blob(ctx, ref.DataRef); err != nil {
			return nil, false, err
		}
	}
	if ref.KeyID == "" {
		return content, true, nil
	}
	switch value, err := r.decrypt(ctx, ref, content); {
	case err == nil:
		return value, true, nil
	case errors.Is(err, ErrNoKey):
		return content, false, nil
	default:
		return nil, false, keyError(ref.Path, ref.KeyID, err)
	}
}

// fill loads and decrypts one value, and reports whether its ref can be removed. left is what may still be loaded.
func (r *Reader) fill(ctx context.Context, ref *schema.Ref, into *schema.Content, left *int64) (done bool, err error) {
	var content jsontext.Value
	if ref.DataRef == "" {
		if content, err = into.JSON(); err != nil {
			return false, err
		}
	}
	if content, done, err = r.value(ctx, ref, content); err != nil {
		return false, err
	}
	if ref.DataRef != "" {
		*left -= int64(len(content))
	}
	switch {
	case *left < 0:
		return false, fmt.Errorf("%w: the state's large fields exceed %d bytes together; raise MaxBlob", ErrBlob, maxHydrate*r.opts.MaxBlob)
	case !content.IsValid():
		return false, fmt.Errorf("%w: %s: is not JSON", ErrBlob, ref.DataRef)
	}
	if err := into.Set(content); err != nil {
		return false, fmt.Errorf("%w: %s: %w", ErrBlob, ref.DataRef, err)
	}
	if !done {
		ref.DataRef, ref.Size = "", 0
	}
	return done, nil
}
