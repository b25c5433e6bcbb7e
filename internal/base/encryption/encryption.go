package encryption

import (
	"context"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/crypto/chacha20poly1305"

	"github.com/waymarkio/waymark/schema"
)

// Codec names the encryption in the refs of events.
const Codec = "xchacha20-poly1305"

// KeySize is the size of a key in bytes.
const KeySize = 32

var (
	// ErrNoKey comes for a value whose key is missing. Add the key, by its id.
	ErrNoKey = errors.New("the key is missing")
	// ErrUnusableKey comes for a key of another size than [KeySize]. Make one with: openssl rand -base64 32.
	ErrUnusableKey = errors.New("the key cannot be used")
	// ErrNotOpened comes for a value that its key does not open: the key is another one of the same id, or the value
	// was changed or moved.
	ErrNotOpened = errors.New("the key does not open the value: it is another key of that id, or the value was changed or put elsewhere")
	// ErrCodec comes for a value with an encryption that this version does not know. Read it with the program that
	// encrypted it.
	ErrCodec = errors.New("this version does not know the encryption of the value")
	// ErrNoPlace comes for content in an event that cannot have refs, or of a type that this version does not know:
	// it would stay readable. Leave the member out, or publish it within an event of the vocabulary.
	ErrNoPlace = errors.New("content cannot be encrypted there")
)

// Keys looks keys up by their ids, and remembers them.
type Keys struct {
	// Fleet whose values they encrypt: one encrypted in another fleet does not open.
	Fleet string
	// Current is the id of the key for new values; empty without encryption.
	Current string
	// Readable labels keep their values unencrypted.
	Readable []string
	// Key returns a key of [KeySize] bytes, and ErrNoKey for a missing one.
	Key func(ctx context.Context, id string) ([]byte, error)

	mu   sync.Mutex
	made map[string]*key
}

// key has the keys derived from a key.
type key struct {
	aead cipher.AEAD
	mac  []byte
}

// known returns a remembered key.
func (k *Keys) known(id string) (*key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if made := k.made[id]; made != nil {
		return made, nil
	}
	return nil, ErrNoKey
}

// get returns a key.
func (k *Keys) get(ctx context.Context, id string) (*key, error) {
	if made, err := k.known(id); err == nil {
		return made, nil
	}
	secret, err := k.Key(ctx, id)
	if err != nil {
		return nil, err
	}
	made, err := newKey(secret)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.made == nil {
		k.made = make(map[string]*key)
	}
	k.made[id] = made
	return made, nil
}

// newKey derives the encryption keys from a key.
func newKey(secret []byte) (*key, error) {
	if len(secret) != KeySize {
		return nil, fmt.Errorf("%w: it has %d bytes, and %d are needed", ErrUnusableKey, len(secret), KeySize)
	}
	derive := func(purpose string) ([]byte, error) {
		return hkdf.Key(sha256.New, secret, nil, "waymark "+Codec+" "+purpose, KeySize)
	}
	cipherKey, err := derive("value")
	if err != nil {
		return nil, err
	}
	mac, err := derive("nonce")
	if err != nil {
		return nil, err
	}
	aead, err := chacha20poly1305.NewX(cipherKey)
	if err != nil {
		return nil, err
	}
	return &key{aead: aead, mac: mac}, nil
}

// Check reports whether there is a usable key for each id, and names the first without one.
func (k *Keys) Check(ctx context.Context, ids ...string) (missing string, err error) {
	for _, id := range ids {
		if _, err := k.get(ctx, id); err != nil {
			return id, err
		}
	}
	return "", nil
}

// Place is what a value is bound to. turn is that of an executor's event, and 0 for a control event, whose turn the
// daemon sets. encrypted reports whether the tool's name at its path is encrypted: then it is unknown when the value
// is decrypted.
func Place(fleet, run, event string, turn int32, c *schema.Content, encrypted func(path string) bool) string {
	parts := append([]string{fleet, run, event, strconv.Itoa(int(turn)), c.Path}, c.IDs...)
	if c.Tool != "" && c.Tool != c.Path && !encrypted(c.Tool) {
		parts = append(parts, "tool="+c.ToolName)
	}
	b, err := json.Marshal(parts)
	if err != nil { // texts that are no valid UTF-8 still stay distinct
		return strings.Join(parts, "\n")
	}
	return string(b)
}

// placeTurn is the turn of an event's values.
func placeTurn(e *schema.Event) int32 {
	if e.Sequence == 0 {
		return 0
	}
	return e.Turn
}

// Encrypt returns the data of an event with its content encrypted, as a copy. invented says that the model invented
// the name of the tool in tool.called.
func (k *Keys) Encrypt(ctx context.Context, run string, turn int32, data schema.Data, body []byte, invented bool) (schema.Data, error) {
	return k.encrypt(ctx, k.Current, run, turn, data, body, invented)
}

// encrypt is Encrypt with the key of an id.
func (k *Keys) encrypt(ctx context.Context, id, run string, turn int32, data schema.Data, body []byte, invented bool) (schema.Data, error) {
	name := data.EventName()
	c, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(name), DataContentType: schema.ContentTypeJSON, Data: body})
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, fmt.Errorf("%w: event %s", ErrNoPlace, name)
	}
	secret, err := k.get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", id, err)
	}
	if offer, ok := c.(*schema.HandoffOfferedData); ok {
		offer.SizeChars = max(offer.SizeChars, offer.Size()) // only the executor can measure it
	}
	names := map[string]bool{"/name": invented}
	if answer, ok := c.(*schema.TurnAnsweredData); ok {
		names = answer.InventedNames()
	}
	refs := schema.RefsOf(c)
	var given []schema.Ref
	if refs != nil {
		given = *refs
		*refs = slices.Clone(given)
	}
	hidden := func(path string) bool { return names[path] || keyed(given, path) }
	for _, content := range schema.Contents(c) {
		if content.Name && !names[content.Path] || k.readable(content.Path) {
			continue
		}
		value, err := content.JSON()
		if err != nil {
			return nil, err
		}
		if len(value) == 0 {
			continue
		}
		if refs == nil {
			return nil, fmt.Errorf("%w: %s of %s", ErrNoPlace, content.Path, name)
		}
		if i := slices.IndexFunc(*refs, func(r schema.Ref) bool { return r.Path == content.Path }); i >= 0 {
			if (*refs)[i].KeyID == "" {
				return nil, fmt.Errorf("%w: %s of %s has a value, although its ref says that it is elsewhere", ErrNoPlace, content.Path, name)
			}
			continue // the caller has encrypted it
		}
		text, err := json.Marshal(base64.StdEncoding.EncodeToString(secret.seal(Place(k.Fleet, run, name, turn, &content, hidden), value)))
		if err != nil {
			return nil, err
		}
		if err := content.Set(text); err != nil {
			return nil, err
		}
		*refs = append(*refs, schema.Ref{Path: content.Path, KeyID: id, Codec: Codec})
	}
	return c, nil
}

func (k *Keys) readable(path string) bool {
	label, ok := strings.CutPrefix(path, "/labels/")
	return ok && slices.Contains(k.Readable, strings.NewReplacer("~1", "/", "~0", "~").Replace(label))
}

// Open decrypts the content of an event's data in place as far as keys are available, and removes the refs of
// decrypted values. The others get their place, so that [Keys.Value] can open them later, including values in the
// blob store. The error is that of the first value that cannot be opened for another reason than ErrNoKey.
func (k *Keys) Open(ctx context.Context, e *schema.Event, data schema.Data) error {
	return openAll(k.Fleet, func(id string) (*key, error) { return k.get(ctx, id) }, e, data)
}

// OpenKnown is Open with the remembered keys only: it calls no key function.
func (k *Keys) OpenKnown(e *schema.Event, data schema.Data) error {
	return openAll(k.Fleet, k.known, e, data)
}

// keyOf returns a key by its id.
type keyOf func(id string) (*key, error)

func openAll(fleet string, keys keyOf, e *schema.Event, data schema.Data) error {
	refs := schema.RefsOf(data)
	if refs == nil || !slices.ContainsFunc(*refs, func(r schema.Ref) bool { return r.KeyID != "" }) {
		return nil
	}
	places := make(map[string]*schema.Content)
	contents := schema.Contents(data)
	for i := range contents {
		places[contents[i].Path] = &contents[i]
	}
	var first error
	given, left := *refs, make([]schema.Ref, 0, len(*refs))
	for _, ref := range *refs {
		content := places[ref.Path]
		if ref.KeyID == "" || content == nil {
			left = append(left, ref)
			continue
		}
		if ref.Place == "" { // it keeps the place of the first call, in which values decrypted since are no part
			ref.Place = Place(fleet, e.Subject, e.Name(), placeTurn(e), content, func(path string) bool { return keyed(given, path) })
		}
		if ref.DataRef == "" {
			err := keys.open(&ref, content)
			if err == nil {
				continue
			}
			if first == nil && !errors.Is(err, ErrNoKey) {
				first = fmt.Errorf("%s of event %s: key %s: %w", ref.Path, e.ID, ref.KeyID, err)
			}
		}
		left = append(left, ref)
	}
	if *refs = left; len(left) == 0 {
		*refs = nil
	}
	return first
}

// keyed reports whether refs mark the value at a path as encrypted.
func keyed(refs []schema.Ref, path string) bool {
	return slices.ContainsFunc(refs, func(r schema.Ref) bool { return r.Path == path && r.KeyID != "" })
}

func (keys keyOf) open(ref *schema.Ref, content *schema.Content) error {
	text, err := content.JSON()
	if err != nil {
		return err
	}
	value, err := keys.value(ref, text)
	if err != nil {
		return err
	}
	return content.Set(value)
}

// Value decrypts a value with a ref that has its place.
func (k *Keys) Value(ctx context.Context, ref *schema.Ref, text jsontext.Value) (jsontext.Value, error) {
	return keyOf(func(id string) (*key, error) { return k.get(ctx, id) }).value(ref, text)
}

func (keys keyOf) value(ref *schema.Ref, text jsontext.Value) (jsontext.Value, error) {
	if ref.Codec != Codec {
		return nil, fmt.Errorf("%w: codec %.40q", ErrCodec, ref.Codec)
	}
	secret, err := keys(ref.KeyID)
	if err != nil {
		return nil, err
	}
	var coded string
	if err := json.Unmarshal(text, &coded); err != nil {
		return nil, fmt.Errorf("%w: it is no JSON string", ErrNotOpened)
	}
	sealed, err := base64.StdEncoding.DecodeString(coded)
	if err != nil || len(sealed) < secret.aead.NonceSize() {
		return nil, fmt.Errorf("%w: it is no base64 of cipher text", ErrNotOpened)
	}
	value, err := secret.aead.Open(nil, sealed[:secret.aead.NonceSize()], sealed[secret.aead.NonceSize():], []byte(ref.Place))
	if err != nil || !jsontext.Value(value).IsValid() {
		return nil, ErrNotOpened
	}
	return value, nil
}

// seal returns nonce and cipher text.
func (k *key) seal(place string, value []byte) []byte {
	mac := hmac.New(sha256.New, k.mac)
	var size [8]byte
	binary.BigEndian.PutUint64(size[:], uint64(len(place)))
	for _, part := range [][]byte{size[:], []byte(place), value} {
		_, _ = mac.Write(part) // a hash takes everything
	}
	nonce := mac.Sum(nil)[:k.aead.NonceSize()]
	return k.aead.Seal(slices.Clip(nonce), nonce, value, []byte(place))
}
