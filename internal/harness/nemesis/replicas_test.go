//go:build unix

package nemesis_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// held is one server's own copy of a stream: each message by its sequence.
type held map[uint64]message

// message is one of them.
type message struct {
	subject string
	// hash over subject, time, headers and data.
	hash [32]byte
}

// latest is a copy's last message of each subject.
func (h held) latest() held {
	last := map[string]uint64{}
	for seq, m := range h {
		last[m.subject] = max(last[m.subject], seq)
	}
	of := held{}
	for _, seq := range last {
		of[seq] = h[seq]
	}
	return of
}

// differing describes where copies of one stream differ, by server; nil if they are equal.
func differing(stream string, copies map[string]held) error {
	names := slices.Sorted(maps.Keys(copies))
	all := map[uint64]bool{}
	for _, name := range names {
		for seq := range copies[name] {
			all[seq] = true
		}
	}
	var found []string
	for _, seq := range slices.Sorted(maps.Keys(all)) {
		first, there := copies[names[0]][seq]
		for _, name := range names[1:] {
			other, too := copies[name][seq]
			switch {
			case there != too:
				found = append(found, fmt.Sprintf("%d of %s: %s has it: %t, %s: %t", seq, cmp.Or(first, other).subject, names[0], there, name, too))
			case first != other:
				found = append(found, fmt.Sprintf("%d of %s: another message at %s than at %s", seq, first.subject, name, names[0]))
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("stream %s: %d messages differ, such as %s", stream, len(found), strings.Join(found[:min(3, len(found))], "; "))
}

// same compares the copies of a stream. For checkpoints, which are derived, the latest of each run must be the same
// everywhere, and so must messages of one sequence. A server that was killed while it started keeps or lacks earlier
// ones than the others (nats-server 2.15.2); their number is returned as earlier.
func same(stream string, copies map[string]held) (earlier int, err error) {
	if !strings.HasPrefix(stream, "KV_WAYMARK_CHECKPOINTS_") {
		return 0, differing(stream, copies)
	}
	latest := map[string]held{}
	seen := held{}
	for name, has := range copies {
		latest[name] = has.latest()
		for seq, m := range has {
			if other, too := seen[seq]; too && other != m {
				return 0, fmt.Errorf("stream %s: %d of %s is not the same message everywhere", stream, seq, m.subject)
			}
			seen[seq] = m
		}
	}
	for seq := range seen {
		for _, has := range copies {
			if _, there := has[seq]; !there {
				earlier++
				break
			}
		}
	}
	return earlier, differing(stream, latest)
}

// sameEverywhere compares each server's own copy of every stream that can be read directly, message by message. The
// load has stopped. The servers are isolated from each other for it, so that none answers for another; one that lacks
// the last committed message may catch up, and is compared again.
func (r *round) sameEverywhere() {
	r.tb.Helper()
	for _, d := range r.daemons {
		r.must(d.terminate(r.tb.Context()))
	}
	var last error
	for range 5 {
		r.eventually("the servers do not catch up", func() error { return r.replicated(r.tb.Context(), r.js) })
		list, err := streams(r.tb.Context(), r.js)
		r.must(err)
		messages, compared, earlier := 0, 0, 0
		last = nil
		r.apart(func(servers []*nats.Conn) {
			for _, info := range list {
				if !info.Config.AllowDirect || info.Config.Storage != jetstream.FileStorage {
					continue
				}
				copies := map[string]held{}
				for i, nc := range servers {
					copies[r.names[i]], err = copyOf(r.tb.Context(), nc, info.Config.Name)
					r.must(err)
				}
				messages += len(copies[r.names[0]])
				compared++
				more, err := same(info.Config.Name, copies)
				earlier += more
				last = errors.Join(last, err)
			}
		})
		if last == nil {
			require.Greater(r.tb, compared, 3, "events, checkpoints, segments and blobs")
			require.Positive(r.tb, messages)
			r.tb.Logf("%d streams with %d messages are the same on %d servers, but for %d earlier checkpoints", compared, messages, len(r.nodes), earlier)
			return
		}
		r.tb.Logf("not yet the same everywhere: %v", last)
	}
	require.NoError(r.tb, last)
}

// apart cuts all servers off from each other, calls do with a connection to each, and lets them together again.
func (r *round) apart(do func([]*nats.Conn)) {
	r.tb.Helper()
	weather := func(w Weather) {
		for _, list := range r.routes {
			for _, p := range list {
				if p != nil {
					p.Set(w)
				}
			}
		}
	}
	var servers []*nats.Conn
	for i, port := range r.ports {
		nc, err := nats.Connect("nats://127.0.0.1:"+strconv.Itoa(port), nats.UserInfo(r.user, r.password), nats.MaxReconnects(0))
		r.must(err)
		defer closeConn(nc)
		_, err = nc.Subscribe(fmt.Sprintf("nemesis.here.%d", i), func(m *nats.Msg) { _ = m.Respond(nil) })
		r.must(err)
		r.must(nc.Flush())
		servers = append(servers, nc)
	}
	weather(Weather{Cut: true})
	defer weather(Weather{})
	for i, nc := range servers {
		for j := range servers {
			r.eventually("the servers still hear each other", func() error {
				_, err := nc.Request(fmt.Sprintf("nemesis.here.%d", j), nil, time.Second)
				if i == j {
					return err
				}
				if !errors.Is(err, nats.ErrNoResponders) {
					return fmt.Errorf("server %d asks server %d: %w", i, j, err)
				}
				return nil
			})
		}
	}
	do(servers)
}

// closeConn closes a connection and waits until it is.
func closeConn(nc *nats.Conn) {
	if nc.IsClosed() {
		return // it is reported once
	}
	closed := make(chan struct{})
	nc.SetClosedHandler(func(*nats.Conn) { close(closed) })
	nc.Close()
	select {
	case <-closed:
	case <-time.After(patience): // it closed in between
	}
}

// copyOf reads all of a stream by direct gets from the one server that is reached.
func copyOf(ctx context.Context, nc *nats.Conn, stream string) (held, error) {
	all := held{}
	for next := uint64(1); ; {
		more, err := readOn(ctx, nc, stream, &next, all)
		if err != nil || !more {
			return all, err
		}
	}
}

// readBytes bounds one answer, so that the server does not take the connection for a slow consumer.
const readBytes = 4 << 20

// readOn reads a batch from a sequence on, and reports whether more follow.
func readOn(ctx context.Context, nc *nats.Conn, stream string, next *uint64, all held) (more bool, err error) {
	body, err := json.Marshal(map[string]any{"seq": *next, "batch": 500, "max_bytes": readBytes, "next_by_subj": ">"})
	if err != nil {
		return false, err
	}
	sub, err := nc.SubscribeSync(nc.NewRespInbox())
	if err != nil {
		return false, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest("$JS.API.DIRECT.GET."+stream, sub.Subject, body); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return false, fmt.Errorf("stream %s from %d: %w", stream, *next, err)
		}
		sequence := m.Header.Get(jetstream.SequenceHeader)
		if sequence == "" {
			switch status := m.Header.Get("Status"); status {
			case "404":
				return false, nil
			case "204":
				return m.Header.Get("Nats-Num-Pending") != "0", nil
			default:
				return false, fmt.Errorf("stream %s: %s %s", stream, status, m.Header.Get("Description"))
			}
		}
		seq, err := strconv.ParseUint(sequence, 10, 64)
		if err != nil {
			return false, err
		}
		header := maps.Clone(m.Header)
		for _, name := range []string{"Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence"} {
			delete(header, name) // of the answer
		}
		text, err := json.Marshal(header, json.Deterministic(true))
		if err != nil {
			return false, err
		}
		all[seq] = message{subject: m.Header.Get(jetstream.SubjectHeader), hash: sha256.Sum256(fmt.Appendf(text, "\n%d\n%s", len(m.Data), m.Data))}
		*next = seq + 1
	}
}

func TestReplicas_Differ_Found(t *testing.T) {
	a, b := message{"r1", sha256.Sum256([]byte("a"))}, message{"r1", sha256.Sum256([]byte("b"))}
	require.NoError(t, differing("s", map[string]held{"x": {1: a, 3: b}, "y": {1: a, 3: b}, "z": {3: b, 1: a}}))
	require.ErrorContains(t, differing("s", map[string]held{"x": {1: a}, "y": {1: b}, "z": {1: a}}), "1 of r1: another message at y than at x")
	require.ErrorContains(t, differing("s", map[string]held{"x": {1: a}, "y": {1: a}, "z": {}}), "1 of r1: x has it: true, z: false")
	require.ErrorContains(t, differing("s", map[string]held{"x": {}, "y": {7: a}, "z": {7: a}}), "7 of r1: x has it: false, y: true")
}

func TestReplicas_Checkpoints_OnlyLatestMustAgree(t *testing.T) {
	a, b, c := message{"r1", sha256.Sum256([]byte("a"))}, message{"r1", sha256.Sum256([]byte("b"))}, message{"r2", sha256.Sum256([]byte("c"))}
	const checkpoints = "KV_WAYMARK_CHECKPOINTS_default_0"
	copies := map[string]held{"x": {1: a, 2: c, 3: b}, "y": {2: c, 3: b}}
	earlier, err := same(checkpoints, copies)
	require.NoError(t, err)
	require.Equal(t, 1, earlier)
	_, err = same("KV_WAYMARK_SEGMENTS_default_0", copies)
	require.ErrorContains(t, err, "1 of r1: x has it: true, y: false")
	for _, other := range []held{{1: a, 2: c}, {1: a, 3: b}, {1: a, 2: c, 3: b, 4: c}, {1: b, 2: c, 3: b}} {
		_, err = same(checkpoints, map[string]held{"x": {1: a, 2: c, 3: b}, "y": other})
		require.Error(t, err, "%v", other)
	}
}
