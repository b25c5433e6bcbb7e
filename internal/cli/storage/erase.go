package storage

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/schema"
)

// eraseTries bounds the depth to which forks of forks are removed.
const eraseTries = schema.MaxBases

// EraseCmd is waymark erase.
type EraseCmd struct {
	Run_   string `arg:"" name:"run" optional:"" help:"Run id; or --check."`
	Force  bool   `help:"Remove it even if it is live, or has a named point, open call or hand-off. Its executor is fenced."`
	Forks  bool   `help:"Remove its forks first."`
	Reason string `placeholder:"TEXT" help:"Why, for the record."`
	By     string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
	Check  string `placeholder:"FILE" help:"Check the receipt in a file: is data of the run left?"`
}

// Help is the text below the flags.
func (EraseCmd) Help() string {
	return `Removes all data of the run: events, segments, checkpoints, large payloads, dead letters, index entries. The event that removes it, ` +
		`without content, stays: it is the receipt, which --json prints, also of a removed run. Its forks must be removed first.

Examples:
  waymark erase fix-login --reason "asked by the customer" --json > fix-login.json
  waymark erase --check fix-login.json`
}

// Validate is called by kong.
func (c EraseCmd) Validate() error {
	switch {
	case c.Check != "" && (c.Run_ != "" || c.Force || c.Forks):
		return errors.New("--check cannot be combined with a run: the receipt names it")
	case c.Check == "" && c.Run_ == "":
		return errors.New("name a run, or a receipt with --check FILE")
	}
	return nil
}

// checkedReceipt is the JSON output of erase --check.
type checkedReceipt struct {
	Run  string `json:"run"`
	ID   string `json:"id"`
	Done bool   `json:"done"`
	// Left is the data that is still stored.
	Left schema.ErasedParts `json:"left"`
}

// Run removes a run, or checks a receipt.
func (c EraseCmd) Run(ctx context.Context, a *base.App) error {
	if c.Check != "" {
		return c.check(ctx, a)
	}
	cl, by, err := a.ConnectAs(ctx, c.By)
	if err != nil {
		return err
	}
	receipt, already, err := c.erase(ctx, a, cl, c.Run_, by, eraseTries)
	if err != nil {
		return err
	}
	if a.JSON {
		err = output.Document(a.Stdout, receipt)
	} else {
		err = printReceipt(a, receipt, already)
	}
	if err != nil { // the removal cannot be undone
		return &failure.Error{
			Code: failure.General, Err: err,
			What: fmt.Sprintf("run %s was erased, but its receipt was not written: %s", receipt.Run, err),
			Hint: "request the receipt again: " + cl.Prompt.Command("erase "+receipt.Run+" --json"),
		}
	}
	return nil
}

// erase removes a run, and waits until it is removed.
func (c EraseCmd) erase(ctx context.Context, a *base.App, cl *base.Client, run, by string, deep int) (receipt *schema.Removal, already bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, cl.Wait)
	defer cancel()
	for first := true; ; first = false {
		var reply schema.EraseReply
		err := cl.Ask(ctx, schema.VerbErase, run, schema.EraseRequest{By: by, Reason: c.Reason, Force: c.Force}, &reply)
		forks := forksIn(err)
		if len(forks) > 0 && c.Forks && deep > 0 {
			for _, fork := range forks {
				if _, _, err := c.erase(ctx, a, cl, fork, by, deep-1); err != nil {
					return nil, false, fmt.Errorf("fork %s of run %s: %w", fork, run, err)
				}
				if err := a.Say(a.Stderr, "fork %s was removed", fork); err != nil {
					return nil, false, err
				}
			}
			continue
		}
		if err != nil {
			return nil, false, c.refused(cl, forks, err)
		}
		if reply.Done {
			return &reply.Removal, first && reply.Already, nil
		}
		if pause.For(ctx, cleanupLook) != nil {
			return nil, false, &failure.Error{
				Code: failure.Unavailable, Err: ctx.Err(),
				What: fmt.Sprintf("the removal of run %s is not finished", run),
				Hint: "the daemon continues; request the receipt again: " + cl.Prompt.Command("erase "+run+" --json"),
			}
		}
	}
}

// forksIn are the forks named in a refusal.
func forksIn(err error) []string {
	told, ok := errors.AsType[*schema.ServiceError](err)
	if !ok || told.Code != schema.CodeNeeded {
		return nil
	}
	var details struct {
		Forks []string `json:"forks"`
	}
	if json.Unmarshal(told.Details, &details) != nil {
		return nil
	}
	return details.Forks
}

// refused adds the next step to a refusal: the command as it was given, with the flag that it lacks.
func (c EraseCmd) refused(cl *base.Client, forks []string, err error) error {
	told, ok := errors.AsType[*schema.ServiceError](err)
	if !ok || told.Code != schema.CodeNeeded {
		return err
	}
	hint, words := "to remove it anyway: ", "erase "+c.Run_
	if len(forks) > 0 {
		hint = "to remove its forks first: "
	}
	if c.Force || len(forks) == 0 {
		words += " --force"
	}
	if c.Forks || len(forks) > 0 {
		words += " --forks"
	}
	hint += cl.Prompt.Command(words)
	return &failure.Error{Code: failure.Conflict, What: told.Message, Hint: hint, Err: err}
}

func partsText(p *schema.ErasedParts) string {
	return fmt.Sprintf("%s in the log, %s, %s, %s, %s, %s in lists", output.Plural(p.LogEvents, "event"), output.Plural(p.Segments, "segment"),
		output.Plural(p.Blobs, "large payload"), output.Plural(p.DeadLetters, "dead letter"), output.Plural(p.Checkpoints, "checkpoint"), output.Plural(p.IndexKeys, "place"))
}

func printReceipt(a *base.App, r *schema.Removal, already bool) error {
	return output.Fields(a.Stdout, output.PastLabel("erased", already), "run "+r.Run, "was", string(r.Status), "events", output.Number(r.Events),
		"segments", output.Number(r.Segments), "size", output.Bytes(r.Bytes), "digest", r.Digest,
		output.ByLabel(r.By), r.By, "reason", r.Reason, "asked", output.LocalTime(r.At), "receipt", r.ID)
}

// check reports what is left of the run of a receipt.
func (c EraseCmd) check(ctx context.Context, a *base.App) error {
	text, err := os.ReadFile(c.Check)
	if err != nil {
		return failure.New(failure.NotFound, "create one with: waymark erase RUN --json > FILE", "receipt %s cannot be read: %s", c.Check, err)
	}
	var receipt schema.Removal
	if err := json.Unmarshal(text, &receipt); err != nil || receipt.ID == "" {
		return failure.New(failure.Usage, "use a file from waymark erase RUN --json", "%s is not a receipt", c.Check)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	if receipt.Fleet != cl.Fleet {
		return failure.New(failure.Usage, "name the fleet with --fleet "+receipt.Fleet, "the receipt belongs to a run of fleet %s, not of fleet %s", receipt.Fleet, cl.Fleet)
	}
	var reply schema.EraseReply
	if err := cl.Ask(ctx, schema.VerbErase, receipt.Run, schema.EraseRequest{Check: true}, &reply); err != nil {
		return err
	}
	if reply.Removal.ID != receipt.ID {
		return failure.New(failure.Conflict, "see who removed it: "+cl.Prompt.Command("erase "+receipt.Run), "run %s was removed by removal %s, but the receipt names removal %s", receipt.Run, reply.Removal.ID, receipt.ID)
	}
	checked := checkedReceipt{Run: receipt.Run, ID: receipt.ID, Done: reply.Done}
	if reply.Left != nil {
		checked.Left = *reply.Left
	}
	if a.JSON {
		err = output.Document(a.Stdout, checked)
	} else if reply.Done && checked.Left.None() {
		err = output.Fields(a.Stdout, "checked", "no data is left of run "+receipt.Run, "erased", output.LocalTime(receipt.At), output.ByLabel(receipt.By), receipt.By, "receipt", receipt.ID)
	}
	if err == nil && (!reply.Done || !checked.Left.None()) {
		err = failure.New(failure.Damaged, "the daemon removes it: check again in a moment", "data of run %s is left: %s", receipt.Run, partsText(&checked.Left))
	}
	return err
}
