package cli

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// scriptSame compares two JSON files as values: same FILE FILE.
func scriptSame(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: same FILE FILE")
	}
	var values [2]jsontext.Value
	for i, name := range args {
		values[i] = jsontext.Value(ts.ReadFile(name))
		if err := values[i].Canonicalize(); err != nil {
			ts.Fatalf("%s: %v", name, err)
		}
	}
	if !bytes.Equal(values[0], values[1]) {
		ts.Fatalf("they differ:\n%s\n%s", values[0], values[1])
	}
}

// scriptFill publishes a run of so many MiB, to its end: fill RUN MIB. With ! the fleet is full before the end, and
// standard error has what a command says of that.
func scriptFill(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] fill RUN MIB")
	}
	size, err := strconv.Atoi(args[1])
	if err != nil {
		ts.Fatalf("%v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), fillLimit)
	defer cancel()
	end, err := natsconn.Discover(ctx, ts.Getenv("WAYMARK_STATE_DIR"))
	if err == nil {
		err = fill(ctx, end, args[0], size)
	}
	if neg != errors.Is(err, publisher.ErrFleetFull) || !neg && err != nil {
		ts.Fatalf("the run ended with: %v", err)
	}
	if neg && failure.Report(ctx, err, prompt.Prompt{}, ts.Stderr()) != int(failure.Full) {
		ts.Fatalf("not the exit code of a full fleet: %v", err)
	}
}

// fillLimit bounds the run of a script.
const fillLimit = 5 * time.Minute

func fill(ctx context.Context, end natsconn.Endpoint, id string, size int) (err error) {
	nc, err := end.Connect(nats.ReconnectBufSize(-1))
	if err != nil {
		return err
	}
	defer nc.Close()
	fleet, err := publisher.Connect(ctx, publisher.Config{Conn: nc, Executor: "shell-test", Agent: "talker"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.Close(ctx)) }()
	run, err := fleet.Start(ctx, publisher.RunSpec{ID: id})
	if err != nil {
		return err
	}
	page := textMessage(schema.RoleUser, strings.Repeat("Once upon a time there was a very long story. ", (128<<10)/46))
	for range size * 8 {
		if err := run.AddMessage(ctx, page); err != nil {
			return err
		}
	}
	return run.End(ctx, publisher.RunEnd{})
}
