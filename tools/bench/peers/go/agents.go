package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	restate "github.com/restatedev/sdk-go"
	"github.com/restatedev/sdk-go/server"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// restateAgent serves a Restate service. A run is one call of its handler by the ingress, a boundary is a restate.Run.
func restateAgent(ctx context.Context, address ...string) (func(id string) error, error) {
	agent := restate.NewService("agent").Handler("play", restate.NewServiceHandler(func(ctx restate.Context, id string) (restate.Void, error) {
		err := play(id, func(_, _ int, o output) (output, error) {
			return restate.Run(ctx, func(restate.RunContext) (output, error) { return o, nil })
		})
		return restate.Void{}, restate.ToTerminalError(err)
	}))
	go func() { _ = server.NewRestate().WithLogger(quiet.Handler(), true).Bind(agent).Start(ctx, address[0]) }() // its registration then fails
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = 256                                            //nolint:forcetypeassert // it is one
	return func(id string) error {
		body, err := json.Marshal(id)
		if err != nil {
			return err
		}
		response, err := http.Post("http://"+address[1]+"/agent/play", "application/json", bytes.NewReader(body)) //nolint:noctx // the run ends it
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode >= http.StatusBadRequest {
			text, _ := io.ReadAll(response.Body)
			return fmt.Errorf("run %s: %s: %s", id, response.Status, text)
		}
		return nil
	}, nil
}

// dbosAgent launches DBOS on a PostgreSQL database. A run is a workflow, a boundary is a step.
func dbosAgent(ctx context.Context, url ...string) (func(id string) error, error) {
	agent := func(ctx dbos.Context, id string) (string, error) {
		return id, play(id, func(_, _ int, o output) (output, error) {
			return dbos.RunAsStep(ctx, func(context.Context) (output, error) { return o, nil })
		})
	}
	d, err := dbos.NewContext(ctx, dbos.Config{AppName: "peers", DatabaseURL: url[0], Logger: quiet})
	if err != nil {
		return nil, err
	}
	dbos.RegisterWorkflow(d, agent)
	return func(id string) error {
		handle, err := dbos.RunWorkflow(d, agent, id, dbos.WithWorkflowID(id))
		if err == nil {
			_, err = handle.GetResult()
		}
		return err
	}, dbos.Launch(d)
}

// temporalAgent is a worker of a Temporal server. A run is a workflow, a boundary is an activity.
func temporalAgent(ctx context.Context, address ...string) (func(id string) error, error) {
	c, err := client.Dial(client.Options{HostPort: address[0], Logger: quiet})
	if err != nil {
		return nil, err
	}
	say := func(_ context.Context, id string, turn, i int) (output, error) { return runOf(id).Turns[turn][i], nil }
	agent := func(ctx workflow.Context, id string) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
		return play(id, func(turn, i int, _ output) (o output, err error) {
			err = workflow.ExecuteActivity(ctx, "say", id, turn, i).Get(ctx, &o)
			return o, err
		})
	}
	w := worker.New(c, "peers", worker.Options{})
	w.RegisterActivityWithOptions(say, activity.RegisterOptions{Name: "say"})
	w.RegisterWorkflowWithOptions(agent, workflow.RegisterOptions{Name: "agent"})
	return func(id string) error {
		handle, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: id, TaskQueue: "peers"}, "agent", id)
		if err != nil {
			return err
		}
		return handle.Get(ctx, nil)
	}, w.Start()
}
