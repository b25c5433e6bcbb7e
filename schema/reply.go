package schema

import (
	"fmt"
	"strings"
)

const (
	// InboxPrefix begins the first token of every inbox of a client: "_INBOX", or "_INBOX_" and the role.
	InboxPrefix = "_INBOX"
	// serviceReply begins what a NATS server makes of a reply subject that crosses a service import.
	serviceReply = "_R_"
)

// ReplyError says that a message names a reply subject which is not an inbox.
type ReplyError struct{ Subject string }

// Error names the subject.
func (e *ReplyError) Error() string {
	return fmt.Sprintf("reply subject %.120q is not an inbox: use one that begins with %s", e.Subject, InboxPrefix)
}

// CheckReply returns a [*ReplyError] unless subject is an inbox: the beginning of a client's, or of what a server makes of one on the way through
// a service import, and then literal tokens. Replies across gateways and leaf nodes have these forms where a client receives them.
//
// Every process that publishes to a subject which a message named checks it first. It would publish with its own permissions,
// which are greater than the asker's: to the API of JetStream, to a bucket, or to a verb of the service.
func CheckReply(subject string) error {
	first, rest, _ := strings.Cut(subject, ".")
	role, isInbox := strings.CutPrefix(first, InboxPrefix)
	switch {
	case first == serviceReply, isInbox && role == "":
	case isInbox && role[0] == '_' && ValidName(role[1:]):
	default:
		return &ReplyError{Subject: subject}
	}
	for token := range strings.SplitSeq(rest, ".") {
		if token == "" || strings.ContainsAny(token, "*> \t\r\n\x00") {
			return &ReplyError{Subject: subject}
		}
	}
	return nil
}
