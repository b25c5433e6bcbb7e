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

// ask sends a request and returns its answer. An answer that is larger than a message comes in several.
func ask(nc *nats.Conn, subject, request string) (*Reply, error) {
	inbox := nc.NewRespInbox()
	replies, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = replies.Unsubscribe() }() // the connection ends with the program
	if err := nc.PublishRequest(subject, inbox, []byte(request)); err != nil {
		return nil, err
	}
	var text []byte
	for {
		m, err := replies.NextMsg(10 * time.Second)
		switch {
		case err != nil:
			return nil, err
		case m.Header.Get("Status") == "503":
			return nil, nats.ErrNoResponders
		case m.Header.Get("Nats-Service-Error-Code") != "":
			return nil, errors.New(string(m.Data)) // {"code":…,"message":…,"hint":…}
		}
		text = append(text, m.Data...) // the answer, or the next part of it
		if kind := m.Header.Get("Waymark-Kind"); kind == "" || kind == "end" {
			answer := new(Reply)
			return answer, json.Unmarshal(text, answer)
		}
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
