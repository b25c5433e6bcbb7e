package backup

import (
	"context"
	// The form of stream configurations is defined by encoding/json.
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/base/durable"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// chunkSize is how much of a stream is sent in one message, windowSize how much before the first acknowledgement.
	chunkSize  = 128 << 10
	windowSize = 8 << 20
	// patience is how long the server may take for the next step.
	patience = 30 * time.Second
	// listenPatience bounds the wait until the server that accepts a stream is known to the others.
	listenPatience = 5 * time.Second
	// finishPatience is how long it may take to assemble a stream at the end.
	finishPatience = 10 * time.Minute
)

// state is the server's description of a stream's content.
type state struct {
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	FirstSeq uint64 `json:"first_seq"`
	LastSeq  uint64 `json:"last_seq"`
}

// stored is Bytes, as a limit of bytes is counted.
func (s *state) stored() int64 { return int64(min(s.Bytes, math.MaxInt64)) } //nolint:gosec // bounded

// description is the file backup.json: the answer to a request for a snapshot, and the request of a restore.
type description struct {
	Config stdjson.RawMessage `json:"config"`
	State  stdjson.RawMessage `json:"state"`
}

// configOf returns the configuration that this version gives the stream, how the described one differs from it, and the described state.
func (d *description) configOf(settings *schema.FleetSettings, s *Stream) (want jetstream.StreamConfig, differences []kvstore.Difference, has state, err error) {
	var have jetstream.StreamConfig
	if err = errors.Join(stdjson.Unmarshal(d.Config, &have), stdjson.Unmarshal(d.State, &has)); err != nil {
		return want, nil, has, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if have.Name != s.Name {
		return want, nil, has, fmt.Errorf("%w: its configuration is that of %.80q", ErrDamaged, have.Name)
	}
	want, differences, err = kvstore.StreamOf(settings, &have, has.stored())
	return want, differences, has, err
}

// describe writes a stream's description and makes its directory durable. A flag that an operator changed on the
// server, or that a change of the settings has not reached yet, gets the value of the settings: a restore accepts no
// other.
func (t *taker) describe(s *Stream) error {
	about := t.about[s.Name]
	want, _, _, err := about.configOf(&t.m.Settings, s)
	if err != nil {
		return err
	}
	if about.Config, err = stdjson.Marshal(want); err != nil {
		return err
	}
	b, err := stdjson.MarshalIndent(about, "", "  ")
	if err != nil {
		return err
	}
	if s.Files[0], err = writeFile(t.path(s.Name, aboutName), b); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Join(t.dir, streamsDir, s.Name))
}

// request asks JetStream's API.
func request[T any](ctx context.Context, js jetstream.JetStream, subject string, body any) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return jsapi.Request[T](ctx, js, subject, body)
}

// snapshot writes a stream to w, as the server delivers it. begun is called with the server's description before the
// first byte.
func snapshot(ctx context.Context, js jetstream.JetStream, stream string, w io.Writer, begun func(description, state) error) error {
	failed := func(err error) error {
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("stream %s: %w", stream, err)
		}
		return fmt.Errorf("stream %s: %w: %w", stream, ErrSnapshot, err)
	}
	nc := js.Conn()
	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	// The window bounds the data that the server sends without an acknowledgement.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return failed(err)
	}
	about, err := request[description](ctx, js, "STREAM.SNAPSHOT."+stream, struct {
		Deliver     string `json:"deliver_subject"`
		NoConsumers bool   `json:"no_consumers"`
		Chunk       int    `json:"chunk_size"`
		Window      int    `json:"window_size"`
	}{inbox, true, chunkSize, windowSize})
	if err != nil {
		return failed(err)
	}
	var has state
	if err := stdjson.Unmarshal(about.State, &has); err != nil {
		return failed(err)
	}
	if err := begun(about, has); err != nil {
		return err
	}
	for {
		wait, cancel := context.WithTimeout(ctx, patience)
		msg, err := sub.NextMsgWithContext(wait)
		cancel()
		if err != nil {
			return failed(err)
		}
		if len(msg.Data) == 0 {
			// The last message has a status; 204 means success.
			if status := msg.Header.Get("Status"); status != "" && status != "204" {
				return failed(errors.New(status + " " + msg.Header.Get("Description")))
			}
			return nil
		}
		if _, err := w.Write(msg.Data); err != nil {
			return err
		}
		if msg.Reply != "" {
			if !strings.HasPrefix(msg.Reply, "$JS.SNAPSHOT.ACK.") {
				return failed(fmt.Errorf("it asks for an acknowledgement on %.120q", msg.Reply))
			}
			if err := msg.Respond(nil); err != nil {
				return failed(err)
			}
		}
	}
}

// sendChunk sends a part of a snapshot. The server that accepts the stream can be another one of the cluster, which
// listens a moment before the others know of it. A message without a responder has reached no server, so it is sent
// again.
func sendChunk(ctx context.Context, nc *nats.Conn, to string, chunk []byte) (*nats.Msg, error) {
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); ; {
		answer, err := nc.RequestWithContext(ctx, to, chunk)
		if !errors.Is(err, nats.ErrNoResponders) || time.Since(begun) > listenPatience {
			return answer, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// restore sends the server a stream to create, and returns its resulting state.
func restore(ctx context.Context, js jetstream.JetStream, stream string, about description, r io.Reader) (state, error) {
	failed := func(err error) (state, error) {
		return state{}, fmt.Errorf("stream %s: %w: %w", stream, ErrRestore, err)
	}
	to, err := request[struct {
		Deliver string `json:"deliver_subject"`
	}](ctx, js, "STREAM.RESTORE."+stream, about)
	if err != nil {
		return failed(err)
	}
	if !strings.HasPrefix(to.Deliver, "$JS.SNAPSHOT.RESTORE.") {
		return failed(fmt.Errorf("it asks to send to %q", to.Deliver))
	}
	chunk := make([]byte, chunkSize)
	for {
		n, err := io.ReadFull(r, chunk)
		if n > 0 {
			wait, cancel := context.WithTimeout(ctx, patience)
			answer, err := sendChunk(wait, js.Conn(), to.Deliver, chunk[:n])
			cancel()
			if err != nil {
				return failed(err)
			}
			if len(answer.Data) > 0 {
				if _, err := jsapi.Decode[struct{}](answer.Data); err != nil {
					return failed(err)
				}
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return state{}, err
		}
	}
	wait, cancel := context.WithTimeout(ctx, finishPatience)
	defer cancel()
	answer, err := js.Conn().RequestMsgWithContext(wait, nats.NewMsg(to.Deliver))
	if err != nil {
		return failed(err)
	}
	made, err := jsapi.Decode[struct {
		State state `json:"state"`
	}](answer.Data)
	if err != nil {
		return failed(err)
	}
	return made.State, nil
}
