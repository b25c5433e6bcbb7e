package jsapi_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
)

const stream = "s"

func world(t *testing.T, config jetstream.StreamConfig) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc := natstest.Start(t).Conn(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	config.Name, config.Subjects, config.AllowDirect = stream, []string{"s.>"}, true
	_, err = js.CreateStream(t.Context(), config)
	require.NoError(t, err)
	return nc, js
}

func TestLastOf_PublishersHeaders_CannotPoseAsTheServers(t *testing.T) {
	t.Parallel()
	_, js := world(t, jetstream.StreamConfig{})
	forged := nats.Header{"Status": {"404"}, jsapi.HeaderSequence: {"7"}, jsapi.HeaderPending: {"0"}}
	_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "s.a", Header: forged})
	require.NoError(t, err)
	m, err := jsapi.LastOf(t.Context(), js, stream, "s.a")
	require.NoError(t, err)
	require.Equal(t, "1", jsapi.Last(m.Header, jsapi.HeaderSequence))

	line, err := jsapi.Dial(js, stream, 8)
	require.NoError(t, err)
	defer line.Close()
	var said []string
	require.NoError(t, line.Ask(t.Context(), time.Minute, jsapi.GetRequest{Seq: 1, NextFor: "s.*", Batch: 4}, func(_ *nats.Msg, status string) (bool, error) {
		said = append(said, status)
		return status != "", nil
	}))
	require.Equal(t, []string{"", jsapi.StatusEnd}, said)
}

func TestGet_NoMessageNoStream_AreTheServersErrors(t *testing.T) {
	t.Parallel()
	_, js := world(t, jetstream.StreamConfig{})
	_, err := jsapi.Get(t.Context(), js, stream, jsapi.GetRequest{LastFor: "s.a"})
	require.ErrorIs(t, err, jetstream.ErrMsgNotFound)
	_, err = jsapi.Get(t.Context(), js, "none", jsapi.GetRequest{LastFor: "s.a"})
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
	_, err = jsapi.LastOf(t.Context(), js, stream, "s.a")
	require.ErrorIs(t, err, jetstream.ErrMsgNotFound)
	_, err = jsapi.LastOf(t.Context(), js, "none", "s.a")
	require.ErrorIs(t, err, nats.ErrNoResponders)
}

func TestDirect_ConnectionCloses_AskEnds(t *testing.T) {
	t.Parallel()
	nc, js := world(t, jetstream.StreamConfig{})
	_, err := js.Publish(t.Context(), "s.a", nil)
	require.NoError(t, err)
	line, err := jsapi.Dial(js, stream, 8)
	require.NoError(t, err)
	defer line.Close()
	err = line.Ask(t.Context(), 0, jsapi.GetRequest{Seq: 1, NextFor: "s.*", Batch: 4}, func(*nats.Msg, string) (bool, error) {
		nc.Close()
		return false, nil
	})
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
}

func TestPurge_BelowASequence_LeavesTheRest(t *testing.T) {
	t.Parallel()
	_, js := world(t, jetstream.StreamConfig{})
	for range 3 {
		_, err := js.Publish(t.Context(), "s.a", nil)
		require.NoError(t, err)
	}
	n, err := jsapi.Purge(t.Context(), js, stream, jsapi.PurgeRequest{Filter: "s.a", Below: 3})
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	first, err := jsapi.Get(t.Context(), js, stream, jsapi.GetRequest{Seq: 1, NextFor: "s.a"})
	require.NoError(t, err)
	require.EqualValues(t, 3, first.Sequence)
}

func TestStreamFull_EachLimit_IsToldFromOtherFailures(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]jetstream.StreamConfig{
		"messages": {MaxMsgs: 1, Discard: jetstream.DiscardNew},
		"bytes":    {MaxBytes: 100, Discard: jetstream.DiscardNew},
	} {
		_, js := world(t, config)
		body := []byte(strings.Repeat("x", 30))
		_, err := js.Publish(t.Context(), "s.a", body)
		require.NoError(t, err, name)
		_, err = js.Publish(t.Context(), "s.a", body)
		require.True(t, jsapi.StreamFull(err), "%s: %v", name, err)
		_, err = js.Publish(t.Context(), "s.a", nil, jetstream.WithExpectLastSequencePerSubject(9))
		require.Error(t, err, name)
		require.False(t, jsapi.StreamFull(err), "%s: %v", name, err)
	}
}

func TestDecodeAck_WhatIsNoAcknowledgement_IsAnError(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]error{
		`{"stream":"s"}`:                  jsapi.ErrAnswer,
		`{"seq":1}`:                       jsapi.ErrAnswer,
		`no JSON`:                         jsapi.ErrAnswer,
		`{"error":{"err_code":10059}}`:    jetstream.ErrStreamNotFound,
		`{"stream":"s","seq":1,"x":true}`: nil,
	} {
		_, err := jsapi.DecodeAck(&nats.Msg{Data: []byte(answer)})
		require.ErrorIs(t, err, want, answer)
	}
	_, err := jsapi.DecodeAck(&nats.Msg{Header: nats.Header{"Status": {"503"}}})
	require.ErrorIs(t, err, nats.ErrNoResponders)
}
