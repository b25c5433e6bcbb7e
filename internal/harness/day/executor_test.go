//go:build unix

package day_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/wire"
)

// Variables that make the test's program a process of the fleet. Their values are the settings as JSON.
const (
	nodeVariable     = "WAYMARK_DAY_NODE"
	executorVariable = "WAYMARK_DAY_EXECUTOR"
)

// nodeSettings are a nats-server's.
type nodeSettings struct {
	StateDir string
	Port     int
	User     string
	Cluster  *natstest.Cluster
}

// executorSettings are those of a process that drives runs of one agent.
type executorSettings struct {
	Name, Life, URLs, User string
	Agent                  string
	Form                   wire.Form
	// World is the address of the provider and of the systems that tools change.
	World string
	// Build is 1 before the deploy, and 2 after it.
	Build    int
	Capacity int
	// Tries of the model before the run waits; 0 means the SDK's default.
	Tries int
	// Dies: the process kills itself at each request to the model.
	Dies bool
	// Early: the executor does not read when the provider may be asked again.
	Early bool
}

func runRole(ctx context.Context, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A read that never ends cannot be awaited: this goroutine lives as long as the process.
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	log := zerolog.New(stderr).With().Timestamp().Logger()
	err := runNode(ctx, getenv(nodeVariable), stdout, log)
	if text := getenv(executorVariable); text != "" {
		err = runExecutor(ctx, text, stdout, log)
	}
	if err != nil {
		log.Error().Err(err).Msg("ended")
		return 1
	}
	return 0
}

func runNode(ctx context.Context, settings string, stdout io.Writer, log zerolog.Logger) error {
	if settings == "" {
		return nil
	}
	var s nodeSettings
	if err := json.Unmarshal([]byte(settings), &s); err != nil {
		return err
	}
	begin, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	node, err := natsd.Start(begin, natsd.Config{StateDir: s.StateDir, Port: s.Port, Options: func(o *server.Options) {
		o.Users = []*server.User{{Username: s.User, Password: s.User}}
		if s.Cluster != nil {
			s.Cluster.Options(o)
		}
	}}, log)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, "{}"); err != nil {
		return errors.Join(err, node.Close())
	}
	if err = node.WaitForShutdown(ctx); ctx.Err() != nil {
		err = nil // it was asked to
	}
	return errors.Join(err, node.Close())
}

// worker is an executor's process.
type worker struct {
	executorSettings
	client *http.Client
}

func runExecutor(ctx context.Context, settings string, stdout io.Writer, log zerolog.Logger) error {
	w := &worker{client: &http.Client{}}
	if err := json.Unmarshal([]byte(settings), &w.executorSettings); err != nil {
		return err
	}
	var fleet *publisher.Fleet
	for fleet == nil {
		var err error
		fleet, err = publisher.Connect(ctx, publisher.Config{
			URL: w.URLs, Options: []nats.Option{nats.UserInfo(w.User, w.User)}, Executor: w.Name, Build: fmt.Sprintf("day-%d", w.Build), Logger: &log,
		})
		if err != nil && !wait(ctx, 200*time.Millisecond) {
			return nil // it was stopped while the fleet was not there
		}
	}
	executor, err := fleet.NewExecutor(publisher.ExecutorSpec{
		Loops: map[string]publisher.Loop{w.Agent: w.loop()}, Capacity: w.Capacity, Grace: 3 * time.Second,
		OnOutcome: func(run string, outcome publisher.Outcome, err error) {
			log.Info().Str("run", run).Str("outcome", string(outcome)).Err(err).Msg("finished")
		},
	})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, "{}"); err != nil {
		return err
	}
	if err := executor.Serve(ctx); err != nil { // runs whose outcome could not be published: another executor resumes them
		log.Error().Err(err).Msg("runs were left")
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return fleet.Close(closing)
}

// loop is the agent of this build. The second build has lost the tool search, and pay needs a currency.
func (w *worker) loop() publisher.Loop {
	type search struct {
		For string `json:"for"`
	}
	look := func(context.Context, search) (string, error) { return lookDone, nil }
	type payment struct {
		Amount int `json:"amount"`
	}
	type paymentIn struct {
		Amount   int    `json:"amount"`
		Currency string `json:"currency"`
	}
	type filing struct {
		Text string `json:"text"`
	}
	file := func(ctx context.Context, _ filing) (string, error) { return w.effect(ctx, fileDone) }
	type helper struct {
		Agent string `json:"agent"`
	}
	ask := func(ctx context.Context, in helper) (string, error) {
		end, err := publisher.InvocationOf(ctx).Run().Delegate(ctx, publisher.RunSpec{Agent: in.Agent, Task: "Settle a bill, too."})
		return heard(in.Agent, end.Status), err
	}
	tools := []publisher.Tool{
		publisher.NewTool("file", "Files the receipt.", publisher.Idempotent, file),
		publisher.NewTool("ask", "Lets another agent help.", publisher.Idempotent, ask),
	}
	if w.Build == 1 {
		tools = append(tools,
			publisher.NewTool("search", "Looks for the bill.", publisher.Pure, look),
			publisher.NewTool("pay", "Pays it.", publisher.Hold, func(ctx context.Context, _ payment) (string, error) { return w.effect(ctx, payDone) }))
	} else {
		tools = append(tools,
			publisher.NewTool("find", "Looks for the bill.", publisher.Pure, look),
			publisher.NewTool("pay", "Pays it.", publisher.Hold, func(ctx context.Context, _ paymentIn) (string, error) { return w.effect(ctx, payDone) }))
	}
	return publisher.Loop{System: "You pay bills.", Model: w.model, Tools: tools, ModelTries: w.Tries}
}

// model asks the provider.
func (w *worker) model(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	if w.Dies {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		<-ctx.Done()
	}
	body, err := w.Form.Request(request, map[string]any{"model": "day", "max_tokens": 100})
	if err != nil {
		return publisher.Answer{}, err
	}
	status, header, text, err := w.post(ctx, "/model", url.Values{
		"run": {request.Run}, "turn": {strconv.Itoa(int(request.Turn))}, "agent": {w.Agent}, "form": {string(w.Form)},
	}, body)
	switch {
	case err != nil:
		return publisher.Answer{}, err
	case status == http.StatusTooManyRequests && w.Early:
		return publisher.Answer{}, errors.New(wire.Error(status, header, text).Error())
	case status != http.StatusOK:
		return publisher.Answer{}, wire.Error(status, header, text)
	}
	return w.Form.Answer(text)
}

// effect changes the outside for the call of ctx.
func (w *worker) effect(ctx context.Context, done string) (string, error) {
	inv := publisher.InvocationOf(ctx)
	status, _, text, err := w.post(ctx, "/effect", url.Values{
		"run": {inv.Run().ID()}, "call": {inv.Key.ToolCallID}, "key": {inv.IdempotencyKey}, "tool": {inv.Name}, "epoch": {strconv.FormatUint(uint64(inv.Epoch), 10)},
	}, nil)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d: %s", status, text)
	}
	return done, err
}

func (w *worker) post(ctx context.Context, path string, query url.Values, body []byte) (status int, header http.Header, text []byte, err error) {
	query.Set("life", w.Life)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.World+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	got, err := w.client.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = got.Body.Close() }()
	text, err = io.ReadAll(got.Body)
	return got.StatusCode, got.Header, text, err
}
