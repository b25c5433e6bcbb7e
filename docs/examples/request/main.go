package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nats-io/nats.go"
)

// snippet: request

// Reply is the part of the answer that this program needs.
type Reply struct {
	Epoch    int  `json:"epoch"` // of a takeover
	Complete bool `json:"complete"`
	State    struct {
		Messages []Message `json:"messages"`
		Older    *struct {
			Subject string          `json:"subject"`
			Request json.RawMessage `json:"request"`
		} `json:"older"`
		LeftOut []struct {
			Path string `json:"path"`
			Size int    `json:"size"`
		} `json:"left_out"`
	} `json:"state"`
}

// Message is a message of the conversation. A json.RawMessage keeps numbers exactly as recorded.
type Message struct {
	// Refs name the fields that are in the object store or encrypted, and therefore empty here.
	Refs []struct {
		Path    string `json:"path"`    // such as /parts/0/response
		DataRef string `json:"dataref"` // waymark-blob:NAME; nats object get WAYMARK_BLOBS_FLEET NAME
		KeyID   string `json:"key_id"`
	} `json:"refs"`
	Role  string `json:"role"`
	Parts []struct {
		Type      string          `json:"type"`
		Content   string          `json:"content"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		Response  json.RawMessage `json:"response"`
	} `json:"parts"`
}

// ask sends a request and returns its answer, with the whole conversation.
func ask(nc *nats.Conn, subject, request string) (*Reply, error) {
	var answer *Reply
	for {
		m, err := nc.Request(subject, []byte(request), 10*time.Second)
		if err != nil {
			return nil, err
		}
		if m.Header.Get("Nats-Service-Error-Code") != "" {
			return nil, errors.New(string(m.Data)) // {"code":…,"message":…,"hint":…}
		}
		page := new(Reply)
		if err := json.Unmarshal(m.Data, page); err != nil {
			return nil, err
		}
		if left := page.State.LeftOut; len(left) > 0 {
			return nil, fmt.Errorf("%s of %d bytes is larger than a message: read it with view events", left[0].Path, left[0].Size)
		}
		if answer == nil {
			answer = page
		} else {
			answer.State.Messages = append(page.State.Messages, answer.State.Messages...)
		}
		older := page.State.Older
		if older == nil {
			return answer, nil
		}
		subject, request = older.Subject, string(older.Request) // the run did not fit into a message
	}
}

// end of request

func main() {
	if err := show(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// show prints the conversation in the answer to a request: request SUBJECT REQUEST.
func show(to io.Writer) error {
	nc, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		return err
	}
	defer nc.Close()
	answer, err := ask(nc, os.Args[1], os.Args[2])
	if err != nil {
		return err
	}
	if !answer.Complete {
		return errors.New("events of the run are missing")
	}
	_, err = fmt.Fprintln(to, "epoch", answer.Epoch)
	for _, m := range answer.State.Messages {
		for _, ref := range m.Refs {
			if _, rerr := fmt.Fprintln(to, m.Role, "has", ref.Path, "elsewhere:", ref.DataRef, ref.KeyID); rerr != nil {
				err = rerr
			}
		}
		for _, p := range m.Parts {
			if _, perr := fmt.Fprintln(to, m.Role, p.Type, p.Content, p.Name, string(p.Arguments), string(p.Response)); perr != nil {
				err = perr
			}
		}
	}
	return err
}
