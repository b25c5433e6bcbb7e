package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/consumer/verify"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// VerifyCmd is waymark verify.
type VerifyCmd struct {
	Run_   string `arg:"" name:"run" optional:"" help:"Run id; or --all."`
	All    bool   `help:"Verify all runs."`
	Strict bool   `help:"Fail on mistakes of executors, too, and list them of all runs."`
}

// Help is the text below the flags.
func (VerifyCmd) Help() string {
	return `Damage is reported with the first bad event, and with what a ` +
		`recovery uses instead. Mistakes of executors, in any language, are listed, too: events that were refused, with the reason, and accepted ones ` +
		`that break a rule (docs/events.md). No daemon is needed. The exit code is 6 if there is any damage, and with --strict 9 if there is any mistake.`
}

// verified is the JSON output of verify. Of many runs only those with findings are listed, with --strict those with
// mistakes, too.
type verified struct {
	Runs     int              `json:"runs"`
	Events   int64            `json:"events"`
	Damaged  int              `json:"damaged"`
	Mistaken int              `json:"mistaken"`
	Verified []*verify.Result `json:"verified"`
}

// Run verifies one run or all.
func (c VerifyCmd) Run(ctx context.Context, a *base.App) error {
	switch {
	case c.Run_ == "" && !c.All:
		return failure.New(failure.Usage, "name a run, or add --all", "neither a run nor --all is given")
	case c.Run_ != "" && c.All:
		return failure.New(failure.Usage, "omit one of them", "run %s and --all are both given", c.Run_)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	js, settings, err := cl.Settings(ctx)
	if err != nil {
		return err
	}
	total := verified{Verified: []*verify.Result{}}
	if c.All {
		err = c.all(ctx, a, js, settings, &total)
	} else {
		err = c.one(ctx, js, settings, &total)
	}
	if err != nil {
		return err
	}
	if err := c.print(a, &total); err != nil {
		return err
	}
	if total.Damaged > 0 {
		return failure.New(failure.Damaged, "restore items without a replacement from a backup; the others are recreated or not needed",
			"%d of %s %s damaged", total.Damaged, output.Plural(total.Runs, "run"), output.InNumber(total.Damaged, "is", "are"))
	}
	if c.Strict && total.Mistaken > 0 {
		return failure.New(failure.Differs, "each check is explained in docs/events.md",
			"%d of %s %s mistakes of executors", total.Mistaken, output.Plural(total.Runs, "run"), output.InNumber(total.Mistaken, "has", "have"))
	}
	return nil
}

func (t *verified) add(v *verify.Result, list bool) {
	t.Runs++
	t.Events += v.Events
	if len(v.Findings) > 0 {
		t.Damaged++
	}
	if len(v.Mistakes) > 0 {
		t.Mistaken++
	}
	if list || len(v.Findings) > 0 {
		t.Verified = append(t.Verified, v)
	}
}

// one verifies a run in its shard.
func (c VerifyCmd) one(ctx context.Context, js jetstream.JetStream, settings schema.FleetSettings, total *verified) error {
	shard, err := kvstore.OpenShard(js, settings, schema.ShardOf(c.Run_, settings.Shards), base.Operator)
	if err != nil {
		return err
	}
	run := c.Run_
	v, err := verifyRun(ctx, js, settings, shard, run)
	if errors.Is(err, verify.ErrNoRun) || err == nil && v.Events == 0 && len(v.Findings) == 0 && len(v.Mistakes) == 0 {
		c, _, err := shard.Checkpoints.GetFresh(ctx, run)
		switch {
		case err == nil && c.Erased != nil:
			return service.Erased(c.Erased)
		case err == nil, errors.Is(err, kvstore.ErrNotFound):
			return failure.New(failure.NotFound, "list the runs with: waymark runs ls", "fleet %s has no run %s", settings.Fleet, run)
		default:
			return err
		}
	}
	if err != nil {
		return err
	}
	total.add(v, true)
	return nil
}

// all verifies the runs of all shards: those in the log, and those with a checkpoint.
func (c VerifyCmd) all(ctx context.Context, a *base.App, js jetstream.JetStream, settings schema.FleetSettings, total *verified) error {
	for i := range settings.Shards {
		shard, err := kvstore.OpenShard(js, settings, i, base.Operator)
		if err != nil {
			return err
		}
		runs, err := runsOf(ctx, js, shard)
		if err != nil {
			return err
		}
		for _, run := range runs {
			v, err := verifyRun(ctx, js, settings, shard, run)
			if errors.Is(err, verify.ErrNoRun) {
				continue // erased meanwhile
			}
			if err != nil {
				return err
			}
			if home := schema.ShardOf(run, settings.Shards); home != i && v.Records > 0 {
				v.Mistakes = append(v.Mistakes, verify.Mistake{
					Check: verify.WrongShard, Event: v.Position, Problem: fmt.Sprintf("the events are in shard %d, and readers look in shard %d", i, home),
				})
			}
			if v.Events > 0 || len(v.Findings) > 0 || len(v.Mistakes) > 0 {
				total.add(v, c.Strict && len(v.Mistakes) > 0)
			}
		}
		if !a.Quiet && !a.JSON && settings.Shards > 1 {
			if _, err := fmt.Fprintf(a.Stderr, "shard %d: %s\n", i, output.Plural(len(runs), "run")); err != nil {
				return err
			}
		}
	}
	return nil
}

// verifyRun verifies a run, and the bases of a fork.
func verifyRun(ctx context.Context, js jetstream.JetStream, settings schema.FleetSettings, shard *kvstore.Shard, run string) (*verify.Result, error) {
	v, err := verify.Run(ctx, js, shard, settings.Fleet, run)
	if err != nil {
		return v, err
	}
	f, err := verify.Bases(ctx, js, settings.Fleet, v.Base, func(run string) (*kvstore.Shard, error) {
		return kvstore.OpenShard(js, settings, schema.ShardOf(run, settings.Shards), base.Operator)
	})
	if err == nil && f != nil {
		v.Findings = append(v.Findings, *f)
	}
	return v, err
}

// runsOf returns the runs of a shard, sorted.
func runsOf(ctx context.Context, js jetstream.JetStream, shard *kvstore.Shard) ([]string, error) {
	var runs []string
	stream, err := js.Stream(ctx, shard.Names.EventStream())
	if err != nil {
		return nil, fmt.Errorf("runs of shard %d: %w", shard.Names.Shard, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(shard.Names.EventSubjects()))
	if err != nil {
		return nil, fmt.Errorf("runs of shard %d: %w", shard.Names.Shard, err)
	}
	for subject := range info.State.Subjects {
		if run := shard.Names.RunOfSubject(subject); schema.ValidName(run) {
			runs = append(runs, run)
		}
	}
	stored, err := shard.Checkpoints.Runs(ctx)
	if err != nil && !errors.Is(err, kvstore.ErrStreamMissing) {
		return nil, err
	}
	runs = append(runs, stored...)
	slices.Sort(runs)
	return slices.Compact(runs), ctx.Err()
}

func (c VerifyCmd) print(a *base.App, total *verified) error {
	if a.JSON {
		return output.Document(a.Stdout, total)
	}
	for _, v := range total.Verified {
		state := "whole"
		if len(v.Findings) > 0 {
			state = "DAMAGED"
		}
		if err := output.Fields(a.Stdout, "run", v.Run, "state", state, "events", output.Number(v.Events), "segments", output.Number(v.Segments),
			"checkpoints", output.Number(v.Checkpoints), "position", output.Position(v.Position), "digest", v.Digest); err != nil {
			return err
		}
		if v.LogMissing > 0 {
			if _, err := fmt.Fprintf(a.Stdout, "%s after the log's first %s only in segments: a crash undid part of a purge\n",
				output.Plural(v.LogMissing, "sealed event"), output.InNumber(v.LogMissing, "is", "are")); err != nil {
				return err
			}
		}
		for i := range v.Findings {
			f := &v.Findings[i]
			instead := "nothing replaces it"
			if f.Instead != "" {
				instead = "recovery uses " + f.Instead
			}
			if _, err := fmt.Fprintf(a.Stdout, "%s; %s\n", output.Printable(f.String()), instead); err != nil {
				return err
			}
		}
		for i := range v.Mistakes {
			if _, err := fmt.Fprintln(a.Stdout, output.Hanging(a.Stdout, "mistake  ", v.Mistakes[i].String())); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(a.Stdout); err != nil {
			return err
		}
	}
	if !c.All || a.Quiet {
		return nil
	}
	if total.Mistaken > 0 && !c.Strict {
		if _, err := fmt.Fprintf(a.Stdout, "%s with mistakes of executors, see them with: %s\n", output.Plural(total.Mistaken, "run"), a.Prompt.Command("verify --all --strict")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(a.Stdout, "%s with %s verified, %d damaged\n", output.Plural(total.Runs, "run"), output.Plural(total.Events, "event"), total.Damaged)
	return err
}
