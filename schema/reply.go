package schema

import (
	"fmt"
	"strings"
)

const (
	// InboxPrefix begins the first token of every inbox of a client: "_INBOX", or "_INBOX_" and the role.
	InboxPrefix = "_INBOX"
	// serviceReply begins the reply subject that a NATS server makes when a request crosses a service import.
	serviceReply = "_R_"
)

// CheckReply returns an error unless subject is an inbox: the prefix of a client's inbox, or of one rewritten
// by a server at a service import, and then literal tokens. Replies across gateways and leaf nodes have these forms
// where a client receives them.
//
// Every process checks a reply subject from a message before it publishes there. It publishes with its own
// permissions, which are greater than the requester's: for the JetStream API, a bucket, or a verb of the service.
func CheckReply(subject string) error {
	refused := func() error {
		return fmt.Errorf("reply subject %.120q is not an inbox: use one that begins with %s", subject, InboxPrefix)
	}
	first, rest, _ := strings.Cut(subject, ".")
	role, isInbox := strings.CutPrefix(first, InboxPrefix)
	switch {
	case first == serviceReply, isInbox && role == "":
	case isInbox && role[0] == '_' && ValidName(role[1:]):
	default:
		return refused()
	}
	for token := range strings.SplitSeq(rest, ".") {
		if token == "" || strings.ContainsAny(token, "*> \t\r\n\x00") {
			return refused()
		}
	}
	return nil
}
