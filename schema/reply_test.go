package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestCheckReply_Inbox_IsAnswered(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{
		"_INBOX.7OcLqTpCx6Yyl0nFhIbiMM", "_INBOX.7OcLqTpCx6Yyl0nFhIbiMM.abc", "_INBOX_operator.a.b.c", "_INBOX_my-role_2.a",
		"_R_.AbC123.x2Fg7H", "_R_.AbC123.x2Fg7H.node.T",
	} {
		require.NoError(t, schema.CheckReply(subject), subject)
	}
}

func TestCheckReply_OtherSubject_IsRefused(t *testing.T) {
	t.Parallel()
	n := schema.NamesOf("f", 0)
	for _, subject := range []string{
		"", "x", "_INBOX", "_INBOX.", "_INBOXES.a", "_INBOX_.a", "_INBOX_a", "_INBOX_a b.c", "_INBOX.a..b", "_INBOX.>", "_INBOX.*", "_INBOX.a b",
		"_INBOX.a\r\nPUB x", "_R_", "_R_.", "_R_.>", "_R_x.a", "inbox.a", " _INBOX.a",
		"$JS.API.STREAM.PURGE." + n.EventStream(), "$JS.ACK.s.c.1.1.1.1.0@_INBOX.a", "$KV.b.k", "$O.b.M.x", "$SYS.REQ.SERVER.PING", "$SRV.PING",
		"_GR_.abcdef.ghijkl.$JS.API.STREAM.PURGE." + n.EventStream(), "_GR_.abcdef.ghijkl._INBOX.a", "$GR.abc.x",
		schema.ServiceSubject(schema.VerbCleanup, "f", ""), n.EventSubject("r"), schema.SettingsSubject("f"), "tools.x",
	} {
		require.ErrorContains(t, schema.CheckReply(subject), "is not an inbox", "%q", subject)
	}
}
