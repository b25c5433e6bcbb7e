package kvstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/schema"
)

// Headers of a stored dead letter. Its body is the original message in the form of the NATS protocol: the header
// block, Waymark-Header-Bytes long, then the body. So the original's headers are kept verbatim, do not affect the
// stream of dead letters, and never make the letter larger than a message can be.
const (
	headerLetterReason      = "Waymark-Reason"
	headerLetterDetail      = "Waymark-Detail"
	headerLetterRun         = "Waymark-Run"
	headerLetterSubject     = "Waymark-Subject"
	headerLetterStream      = "Waymark-Stream"
	headerLetterSequence    = "Waymark-Stream-Sequence"
	headerLetterIncarnation = "Waymark-Incarnation"
	headerLetterStored      = "Waymark-Stored"
	headerLetterBytes       = "Waymark-Header-Bytes"
	headerLetterCut         = "Waymark-Cut-Bytes"
)

// maxDetail bounds the description of a letter, in bytes.
const maxDetail = 1024

// DeadLetter is a rejected message of an event stream with the reason, complete unless it is cut.
type DeadLetter struct {
	// Reason of the rejection. Required.
	Reason schema.Reason
	// Detail for people; control characters are replaced and it is cut to 1 KiB.
	Detail string
	// Run in the message's subject; a name outside the grammar is filed under "_".
	Run string
	// EventStream and Stream sequence of the message, Incarnation of that stream. Required.
	EventStream string
	Stream      schema.StreamSequence
	Incarnation string
	// Subject, Header and Body of the message as published; Stored is its time of storage.
	Subject string
	Header  map[string][]string
	Body    []byte
	Stored  time.Time
	// Cut is the size of Header and Body if they do not fit into a letter, which is then filed without them. Set by
	// PutBatch.
	Cut int
}

// DeadLetters is a fleet's stream of rejected messages.
type DeadLetters struct {
	bucket bucket
	fleet  string
}

// NewDeadLetters returns a fleet's dead letters. It does no I/O.
func NewDeadLetters(js jetstream.JetStream, fleet string) (*DeadLetters, error) {
	if err := schema.CheckName("fleet", fleet); err != nil {
		return nil, err
	}
	stream := schema.DeadLetterStream(fleet)
	return &DeadLetters{bucket{js: js, name: stream, stream: stream}, fleet}, nil
}

// PutBatch files letters without waiting between them; the number and bytes in flight are bounded. It returns when
// every letter was answered, or ctx is done, or the server is silent; the errors are in the order of the letters. The
// message id of a letter is the event stream, its incarnation, the stream sequence and a hash of the message. Filed
// again within two minutes it is the same letter; after that there are two with equal ids. A letter that fits into no
// message is filed without its content, and its Cut says so. Errors are [ErrTooLarge] (even without its content),
// [ErrUnavailable] (file it again), [ErrStreamMissing].
func (d *DeadLetters) PutBatch(ctx context.Context, letters []DeadLetter) []error {
	errs := d.file(ctx, letters)
	var cut []DeadLetter
	var at []int
	for i, err := range errs {
		if errors.Is(err, ErrTooLarge) {
			letters[i].Cut = len(headerBlock(letters[i].Header)) + len(letters[i].Body)
			cut, at = append(cut, letters[i]), append(at, i)
		}
	}
	if len(cut) > 0 {
		for i, err := range d.file(ctx, cut) {
			errs[at[i]] = err
		}
	}
	return errs
}

// file puts letters in flight together.
func (d *DeadLetters) file(ctx context.Context, letters []DeadLetter) []error {
	errs := make([]error, len(letters))
	for i, r := range d.bucket.fly(ctx, len(letters), func(i int) (*nats.Msg, error) { return d.message(&letters[i]) }) {
		if l := &letters[i]; r.Err != nil {
			errs[i] = fmt.Errorf("put dead letter of %s at %d: %w", l.EventStream, l.Stream, r.Err)
		}
	}
	return errs
}

// message builds the put of a letter; a cut letter has no content.
func (d *DeadLetters) message(l *DeadLetter) (*nats.Msg, error) {
	if l.Reason == "" || l.EventStream == "" || l.Incarnation == "" || l.Stream == 0 {
		return nil, errors.New("reason, event stream, incarnation and stream sequence are required")
	}
	if !slices.Contains(schema.Reasons(), l.Reason) {
		return nil, fmt.Errorf("unknown reason %.40q", l.Reason)
	}
	block := headerBlock(l.Header)
	data := append(block, l.Body...)
	// Damage may have freed the sequence: another message there is another letter.
	sum := sha256.Sum256(data)
	sequence := strconv.FormatUint(uint64(l.Stream), 10)
	header := nats.Header{
		headerLetterReason:      {string(l.Reason)},
		headerLetterDetail:      {printable(l.Detail, maxDetail)},
		headerLetterSubject:     {printable(l.Subject, maxDetail)},
		headerLetterStream:      {l.EventStream},
		headerLetterSequence:    {sequence},
		headerLetterIncarnation: {l.Incarnation},
		headerLetterStored:      {schema.FormatTime(l.Stored)},
		jetstream.MsgIDHeader:   {l.EventStream + "." + l.Incarnation + "." + sequence + "." + hex.EncodeToString(sum[:8])},
	}
	if l.Cut > 0 {
		block, data = nil, nil
		header[headerLetterCut] = []string{strconv.Itoa(l.Cut)}
	}
	header[headerLetterBytes] = []string{strconv.Itoa(len(block))}
	if schema.ValidName(l.Run) {
		header[headerLetterRun] = []string{l.Run}
	}
	return &nats.Msg{Subject: schema.DeadLetterSubject(d.fleet, l.Reason, l.Run), Header: header, Data: data}, nil
}

const blockStart = "NATS/1.0\r\n"

// headerBlock writes headers in the form of the NATS protocol, sorted by name; it is empty for none.
func headerBlock(header map[string][]string) []byte {
	if len(header) == 0 {
		return nil
	}
	var b bytes.Buffer
	b.WriteString(blockStart)
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			b.WriteString(name)
			b.WriteByte(':')
			b.WriteString(lineBreaks.Replace(value))
			b.WriteString("\r\n")
		}
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// lineBreaks cannot occur in a received header; a forged one must not begin its own line.
var lineBreaks = strings.NewReplacer("\r", " ", "\n", " ")

// printable replaces unprintable characters and cuts to at most n bytes.
func printable(s string, n int) string {
	if len(s) > n {
		s = strings.ToValidUTF8(s[:n], "")
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
