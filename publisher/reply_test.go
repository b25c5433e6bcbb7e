package publisher_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// forged is a subject that is no inbox, on which an executor or a tool may well be permitted to publish.
const forged = "waymark.cancel.default.another"

func TestServeVerify_ReplySubjectIsNoInbox_IsNotAnswered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tool := w.server.Conn(t)
	heard, err := w.nc.SubscribeSync(forged)
	require.NoError(t, err)
	stop, err := publisher.ServeVerify(tool, verifySubject, "", func(context.Context, schema.VerifyRequest) (schema.VerifyReply, error) {
		return schema.VerifyReply{Outcome: schema.VerifyNotDone}, nil
	})
	require.NoError(t, err)
	require.NoError(t, w.nc.PublishRequest(verifySubject, forged, []byte("{}")))
	// The workers answer in any order: as many as there are of them, and more, are answered behind it.
	for range 64 {
		_, err = w.nc.RequestWithContext(t.Context(), verifySubject, []byte("{}"))
		require.NoError(t, err)
	}
	require.ErrorContains(t, stop(), "is not an inbox", "the tool is told")
	require.NoError(t, tool.Flush())
	require.NoError(t, w.nc.Flush())
	pending, _, err := heard.Pending()
	require.NoError(t, err)
	require.Zero(t, pending)
}

func TestConnect_InboxPrefixThatIsNotAnswered_IsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	connect := func(prefix string) (*publisher.Fleet, error) {
		return publisher.Connect(t.Context(), publisher.Config{
			URL: w.server.URL(), Options: append(w.server.Options(), nats.CustomInboxPrefix(prefix)), Executor: "e", Agent: "a",
		})
	}
	_, err := connect("answers")
	require.ErrorIs(t, err, publisher.ErrConfig)
	require.ErrorContains(t, err, "CustomInboxPrefix")
	f, err := connect("_INBOX_executor")
	require.NoError(t, err)
	require.NoError(t, f.Close(t.Context()))
}
