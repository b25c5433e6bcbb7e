package storage

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/base/durable"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// erasesAtOnce is the number of concurrent requests.
	erasesAtOnce = 16
	// overwriteWait is how long the daemon may take to remove and overwrite, and a second more for each run, and
	// waitsFor how long the command waits once only the overwriting is missing, for a full stream or an absent server.
	overwriteWait, waitsFor = time.Minute, 5 * time.Second
)

// EraseCmd is waymark erase.
type EraseCmd struct {
	Run_ string `arg:"" name:"run" optional:"" help:"Run id; or --label, --tenant, --agent, --tier, --again, --check."`
	base.ScopeFlags
	DryRun  bool   `help:"Print the ids of the runs, and erase nothing."`
	Force   bool   `help:"Remove it even if it is live, or has a named point, open call or hand-off. Its executor is fenced."`
	Forks   bool   `help:"Remove its forks first."`
	Reason  string `placeholder:"TEXT" help:"Why, for the record."`
	By      string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
	Receipt string `placeholder:"FILE" help:"Write the receipt to a file, before the first run is erased and at the end."`
	Again   string `placeholder:"FILE" help:"Erase the runs of a receipt again, with force, such as after a restore or a crash."`
	Check   string `placeholder:"FILE" help:"Check the receipt in a file: is data of its runs left?"`
}

// Help is the text below the flags.
func (EraseCmd) Help() string {
	return `Removes all data of the runs: events, segments, checkpoints, large payloads, dead letters, index entries. Their bytes are overwritten. The receipt ` +
		`says what may stay where, until when. The event that removes a run, without content, stays. Forks must be removed first.

Examples:
  waymark erase fix-login --reason "asked by the customer" --receipt fix-login.json
  waymark erase --tenant acme --force --forks --receipt acme.json
  waymark erase --check acme.json
  waymark erase --again acme.json`
}

// Validate is called by kong.
func (c EraseCmd) Validate() error {
	ways := 0
	for _, way := range []bool{c.Run_ != "", c.Any(), c.Again != "", c.Check != ""} {
		if way {
			ways++
		}
	}
	switch {
	case ways != 1:
		return errors.New("name a run, or select runs with --label, --tenant, --agent or --tier, or a receipt with --check or --again")
	case c.Check != "" && (c.Force || c.Forks || c.Receipt != "" || c.DryRun), c.Again != "" && c.Receipt != "":
		return errors.New("--check and --again take the rest from their receipt")
	}
	return nil
}

// receipt is the JSON output of erase.
type receipt struct {
	Fleet string `json:"fleet"`
	// ID is that of the removals.
	ID     string `json:"id"`
	Reason string `json:"reason,omitzero"`
	Forks  bool   `json:"forks,omitzero"`
	// Scope of the runs; that of one run is empty.
	schema.Scope
	// Runs were erased.
	Runs []schema.Removal `json:"runs"`
	// Pending runs were not, with the reason if there is one: erase --again continues.
	Pending map[string]string `json:"pending,omitzero"`
	// GoneBy is when the bytes are gone from the files of every server, except those in Stays; empty if they wait, or
	// are gone.
	GoneBy string `json:"gone_by,omitzero"`
	// Waits is why bytes are not overwritten yet, although nothing else is left.
	Waits string `json:"waits,omitzero"`
	// Stays is what may be left, where, and until when.
	Stays []stay `json:"stays,omitzero"`
}

// stay is data that may be left of erased runs.
type stay struct {
	What  string `json:"what"`
	Where string `json:"where"`
	Until string `json:"until"`
}

// checkedReceipt is the JSON output of erase --check.
type checkedReceipt struct {
	Run  string `json:"run"`
	ID   string `json:"id"`
	Done bool   `json:"done"`
	// GoneBy is when its bytes are gone from the servers' files; empty if they are.
	GoneBy string `json:"gone_by,omitzero"`
	// Left is the data that is still stored.
	Left schema.ErasedParts `json:"left"`
}

// Run erases runs, or checks a receipt.
func (c EraseCmd) Run(ctx context.Context, a *base.App) error {
	if c.Check != "" {
		return c.check(ctx, a)
	}
	cl, by, err := a.ConnectAs(ctx, c.By)
	if err != nil {
		return err
	}
	r := &receipt{Fleet: cl.Fleet, ID: rand.Text(), Reason: c.Reason, Forks: c.Forks, Scope: c.Scope(), Pending: map[string]string{}}
	switch {
	case c.Again != "":
		if r, err = readReceipt(c.Again, cl); err != nil {
			return err
		}
		for i := range r.Runs {
			r.Pending[r.Runs[i].Run] = ""
		}
		c.Force, c.Forks, c.Reason, c.Receipt, r.Runs = true, r.Forks, r.Reason, c.Again, nil
		r.GoneBy, r.Waits = "", ""
	case c.Run_ != "":
		r.Pending[c.Run_] = ""
	default:
		if err := c.find(ctx, cl, r); err != nil {
			return err
		}
	}
	if c.DryRun {
		_, err := fmt.Fprint(a.Stdout, strings.Join(append(slices.Sorted(maps.Keys(r.Pending)), ""), "\n"))
		return err
	}
	if err := c.write(r); err != nil {
		return err
	}
	already, err := c.eraseAll(ctx, a, cl, by, r)
	if c.Run_ != "" && err != nil {
		return err
	}
	r.Stays = stays(ctx, cl, r.Runs)
	werr := c.write(r)
	switch {
	case werr != nil:
	case a.JSON:
		werr = output.Document(a.Stdout, r)
	default:
		werr = r.print(a, already)
	}
	if werr != nil { // a removal cannot be undone
		werr = &failure.Error{
			Code: failure.General, Err: werr,
			What: fmt.Sprintf("erased %s, but the receipt was not written: %s", r.text(), werr),
			Hint: "request the receipt again: " + cl.Prompt.Command("erase "+cmp.Or(c.Run_, "RUN")+" --json"),
		}
	}
	return errors.Join(err, werr)
}

// text names the erased runs.
func (r *receipt) text() string {
	if len(r.Runs) == 1 {
		return "run " + r.Runs[0].Run
	}
	return output.Plural(len(r.Runs), "run")
}

// write stores the receipt in its file, if it has one.
func (c EraseCmd) write(r *receipt) error {
	if c.Receipt == "" {
		return nil
	}
	return durable.Replace(c.Receipt, func(w io.Writer) error { return output.Document(w, r) })
}

// find lists the selected runs.
func (c EraseCmd) find(ctx context.Context, cl *base.Client, r *receipt) error {
	req := schema.ListRequest{Agent: r.Agent, ModelTier: r.ModelTier, Labels: r.Labels, Limit: schema.MaxList}
	for {
		var page schema.ListReply
		if err := cl.Ask(ctx, schema.VerbList, "", req, &page); err != nil {
			return err
		}
		if page.Incomplete {
			return failure.New(failure.Unavailable, "repeat it in a moment", "the list of runs is incomplete")
		}
		for i := range page.Runs {
			r.Pending[page.Runs[i].Run] = ""
		}
		if req.After = page.Next; req.After == "" {
			return nil
		}
	}
}

// eraseAll erases the pending runs, forks before their bases, and waits until nothing is left of them. It reports
// whether all were removed before.
func (c EraseCmd) eraseAll(ctx context.Context, a *base.App, cl *base.Client, by string, r *receipt) (already bool, err error) {
	var mu sync.Mutex
	var refused, failed error
	ask := func(runs []string, of func(run string, reply *schema.EraseReply, err error) error) error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(erasesAtOnce)
		for _, run := range runs {
			group.Go(func() error {
				var reply schema.EraseReply
				err := cl.Ask(ctx, schema.VerbErase, run, schema.EraseRequest{By: by, ID: r.ID, Reason: c.Reason, Force: c.Force}, &reply)
				mu.Lock()
				defer mu.Unlock()
				return of(run, &reply, err)
			})
		}
		return group.Wait()
	}
	already = true
	for more := true; more && failed == nil; {
		more, refused = false, nil
		failed = ask(slices.Sorted(maps.Keys(r.Pending)), func(run string, reply *schema.EraseReply, err error) error {
			told, _ := errors.AsType[*schema.ServiceError](err)
			switch {
			case err == nil:
				delete(r.Pending, run)
				r.Runs, already, more = append(r.Runs, reply.Removal), already && reply.Already, true
				if c.Run_ != "" && run != c.Run_ {
					return a.Say(a.Stderr, "fork %s was removed", run)
				}
				return nil
			case told != nil && told.Code == schema.CodeNotFound && c.Run_ == "":
				delete(r.Pending, run) // the restored backup does not have it
				return nil
			case told == nil || told.Code != schema.CodeNeeded:
				return err
			}
			forks := forksIn(told)
			for _, fork := range forks {
				if _, known := r.Pending[fork]; c.Forks && !known {
					r.Pending[fork], more = "", true
				}
			}
			if r.Pending[run] = told.Message; refused == nil || len(forks) == 0 {
				refused = c.refused(cl, forks, told) // that of a fork says more than its base's
			}
			return nil
		})
	}
	wait, cancel := context.WithTimeout(ctx, max(cl.Wait, overwriteWait+time.Duration(len(r.Runs))*time.Second))
	defer cancel()
	began, left := a.Now(), make([]string, 0, len(r.Runs))
	for i := range r.Runs {
		left = append(left, r.Runs[i].Run)
	}
	for failed == nil && len(left) > 0 {
		var next []string
		stored := false
		failed = ask(left, func(run string, reply *schema.EraseReply, err error) error {
			r.GoneBy = max(r.GoneBy, reply.GoneBy)
			if err == nil && !reply.Done {
				next, r.Waits, stored = append(next, run), reply.Waits, stored || reply.Waits == ""
			}
			return err
		})
		if left = next; len(left) == 0 || failed != nil {
			break
		}
		late := pause.For(wait, cleanupLook) != nil
		if !stored && (late || a.Now().Sub(began) > waitsFor) {
			r.GoneBy = ""
			break
		}
		if r.Waits = ""; late {
			failed = &failure.Error{
				Code: failure.Unavailable, Err: wait.Err(),
				What: fmt.Sprintf("the removal of run %s is not finished", left[0]),
				Hint: "the daemon continues; request the receipt again: " + cl.Prompt.Command("erase "+left[0]+" --json"),
			}
		}
	}
	if failed == nil {
		failed = refused
	}
	slices.SortFunc(r.Runs, func(a, b schema.Removal) int { return strings.Compare(a.Run, b.Run) })
	if len(r.Runs) == 1 {
		r.ID = r.Runs[0].ID // of the request that removed it
	}
	return already, failed
}

// stays is what may be left after an erasure.
func stays(ctx context.Context, cl *base.Client, runs []schema.Removal) []stay {
	list := []stay{{
		What:  "checkpoints and log events that newer ones or segments had replaced before",
		Where: "the servers' files, blocks of 8 MiB of which other runs use half or more",
		Until: "they use less",
	}}
	if slices.ContainsFunc(runs, func(r schema.Removal) bool { return !r.Overwrite }) {
		list = append(list, stay{What: "all of what cleanup had removed before", Where: list[0].Where, Until: list[0].Until})
	}
	js, err := jetstream.New(cl.NATS)
	if err != nil {
		return list
	}
	last, err := kvstore.LastBackup(ctx, js, cl.Fleet)
	if err != nil {
		return list
	}
	for _, b := range append([]kvstore.BackupRecord{last}, last.Earlier...) {
		list = append(list, stay{What: "the runs as they were at " + b.Began, Where: "backup " + b.ID + ", by " + b.By, Until: "you delete it"})
	}
	return list
}

// forksIn are the forks named in a refusal.
func forksIn(told *schema.ServiceError) []string {
	var details struct {
		Forks []string `json:"forks"`
	}
	_ = json.Unmarshal(told.Details, &details) // none without details
	return details.Forks
}

// refused adds the next step to a refusal: the command as it was given, with the flag that it lacks.
func (c EraseCmd) refused(cl *base.Client, forks []string, told *schema.ServiceError) error {
	hint, words := "to remove it anyway: ", "erase "+cmp.Or(c.Run_, "--label KEY=VALUE")
	if len(forks) > 0 {
		hint = "to remove its forks first: "
	}
	if c.Force || len(forks) == 0 {
		words += " --force"
	}
	if c.Forks || len(forks) > 0 {
		words += " --forks"
	}
	return &failure.Error{Code: failure.Conflict, What: told.Message, Hint: hint + cl.Prompt.Command(words), Err: told}
}

func partsText(p *schema.ErasedParts) string {
	return fmt.Sprintf("%s in the log, %s, %s, %s, %s, %s in lists", output.Plural(p.LogEvents, "event"), output.Plural(p.Segments, "segment"),
		output.Plural(p.Blobs, "large payload"), output.Plural(p.DeadLetters, "dead letter"), output.Plural(p.Checkpoints, "checkpoint"), output.Plural(p.IndexKeys, "place"))
}

// print shows a receipt to people.
func (r *receipt) print(a *base.App, already bool) error {
	var sum, first schema.Removal
	for i := range r.Runs {
		sum.Events, sum.Segments, sum.Bytes = sum.Events+r.Runs[i].Events, sum.Segments+r.Runs[i].Segments, sum.Bytes+r.Runs[i].Bytes
		first = r.Runs[0]
	}
	if len(r.Runs) != 1 {
		first.Status, first.Digest = "", ""
	}
	fields := []string{
		output.PastLabel("erased", already && len(r.Runs) > 0), r.text(), "was", string(first.Status), "events", output.Number(sum.Events),
		"segments", output.Number(sum.Segments), "size", output.Bytes(sum.Bytes), "digest", first.Digest,
		output.ByLabel(first.By), first.By, "reason", first.Reason, "asked", output.LocalTime(first.At), "bytes gone by", output.LocalTime(r.GoneBy), "bytes wait", r.Waits, "receipt", r.ID,
	}
	for _, run := range slices.Sorted(maps.Keys(r.Pending)) {
		fields = append(fields, "not erased", cmp.Or(r.Pending[run], "run "+run))
	}
	for _, s := range r.Stays {
		fields = append(fields, "may stay", s.What+", in "+s.Where+", until "+s.Until)
	}
	return output.Fields(a.Stdout, fields...)
}

// readReceipt reads a receipt of the client's fleet.
func readReceipt(name string, cl *base.Client) (*receipt, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, failure.New(failure.NotFound, "create one with: waymark erase RUN --receipt FILE", "receipt %s cannot be read: %s", name, err)
	}
	r := receipt{Pending: map[string]string{}}
	if err := json.Unmarshal(text, &r); err != nil || r.ID == "" {
		return nil, failure.New(failure.Usage, "use a file from waymark erase RUN --receipt FILE", "%s is not a receipt", name)
	}
	if r.Fleet != cl.Fleet {
		return nil, failure.New(failure.Usage, "name the fleet with --fleet "+r.Fleet, "the receipt belongs to a run of fleet %s, not of fleet %s", r.Fleet, cl.Fleet)
	}
	return &r, nil
}

// check reports what is left of the runs of a receipt.
func (c EraseCmd) check(ctx context.Context, a *base.App) error {
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	r, err := readReceipt(c.Check, cl)
	if err != nil {
		return err
	}
	checked, dirty, goneBy := make([]checkedReceipt, len(r.Runs)), error(nil), ""
	for i := range r.Runs {
		want, one := &r.Runs[i], &checked[i]
		var reply schema.EraseReply
		err := cl.Ask(ctx, schema.VerbErase, want.Run, schema.EraseRequest{Check: true}, &reply)
		if told, ok := errors.AsType[*schema.ServiceError](err); ok && told.Code == schema.CodeNotFound {
			err, reply.Removal.ID, reply.Done = nil, want.ID, true // a backup from before the run was restored
		}
		if err != nil {
			return err
		}
		one.Run, one.ID, one.Done, one.GoneBy = want.Run, want.ID, reply.Done, reply.GoneBy
		goneBy = max(goneBy, reply.GoneBy)
		if reply.Left != nil {
			one.Left = *reply.Left
		}
		switch {
		case reply.Removal.ID == "":
			dirty = failure.New(failure.Damaged, "a restore brought it back; erase it again: "+cl.Prompt.Command("erase --again "+c.Check), "run %s is stored again: %s", want.Run, partsText(&one.Left))
		case reply.Removal.ID != want.ID:
			return failure.New(failure.Conflict, "see who removed it: "+cl.Prompt.Command("erase "+want.Run), "run %s was removed by removal %s, but the receipt names removal %s", want.Run, reply.Removal.ID, want.ID)
		case dirty == nil && reply.Waits != "":
			dirty = failure.New(failure.Damaged, "the daemon tries again: check later", "bytes of run %s are left: %s", want.Run, reply.Waits)
		case dirty == nil && (!reply.Done || !one.Left.None()):
			dirty = failure.New(failure.Damaged, "the daemon removes it: check again in a moment", "data of run %s is left: %s", want.Run, partsText(&one.Left))
		}
	}
	if dirty == nil && len(r.Pending) > 0 {
		dirty = failure.New(failure.Damaged, "continue: "+cl.Prompt.Command("erase --again "+c.Check), "%s of the receipt, still to erase", output.Plural(len(r.Pending), "run"))
	}
	if a.JSON {
		err = output.Document(a.Stdout, checked)
	} else if dirty == nil {
		err = output.Fields(a.Stdout, "checked", "no data is left of "+r.text(), "bytes gone by", output.LocalTime(goneBy), "receipt", r.ID)
	}
	return errors.Join(err, dirty)
}
