package fleet

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

type retentionCmd struct {
	Completed *keepTime `placeholder:"TIME" help:"Keep completed runs this long after their last event: 30d, 12h, forever."`
	Failed    *keepTime `placeholder:"TIME" help:"The same for failed runs."`
	Cancelled *keepTime `placeholder:"TIME" help:"The same for cancelled runs."`
	Grace     *keepTime `placeholder:"TIME" help:"Keep runs with events newer than this (default: 10m)."`
	Off       bool      `help:"Keep all runs forever."`
}

// Help is the text below the flags.
func (retentionCmd) Help() string {
	return `Without flags, shows the policy, which the daemon applies once an hour; waymark cleanup --dry-run shows the plan. Settings without a ` +
		`flag stay. Without a policy all runs are kept. Recommended are ` +
		strconv.Itoa(int(schema.DefaultRetainCompleted/(24*time.Hour))) + ` days for completed runs and ` + strconv.Itoa(int(schema.DefaultRetainFailed/(24*time.Hour))) + ` for failed ones.

Examples:
  waymark fleet retention --completed 30d --failed 7d
  waymark fleet retention --off`
}

// keepTime is a retention time; 0 means for ever.
type keepTime time.Duration

// UnmarshalText reads a time, with days, or forever.
func (k *keepTime) UnmarshalText(text []byte) error {
	s := string(text)
	if s == "forever" {
		*k = 0
		return nil
	}
	d, err := base.ParseDays(s)
	if err != nil || d < time.Second {
		return fmt.Errorf("%.40q is not a time: use one such as 30d or 12h, or forever", s)
	}
	*k = keepTime(d)
	return nil
}

// retentionView is the JSON output of retention.
type retentionView struct {
	Fleet     string                 `json:"fleet"`
	Retention schema.RetentionPolicy `json:"retention"`
}

// Run shows or sets the policy.
func (c retentionCmd) Run(ctx context.Context, a *base.App) error {
	if c.Off && (c.Completed != nil || c.Failed != nil || c.Cancelled != nil || c.Grace != nil) {
		return failure.New(failure.Usage, "omit --off, or the times", "--off cannot be combined with other flags")
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	js, settings, err := cl.Settings(ctx)
	if err != nil {
		return err
	}
	policy := settings.Retention
	if c.Off || c.Completed != nil || c.Failed != nil || c.Cancelled != nil || c.Grace != nil {
		ctx, cancel := context.WithTimeout(ctx, max(cl.Wait, base.StartTimeout))
		defer cancel()
		now, err := kvstore.Change(ctx, js, cl.Fleet, func(config *kvstore.FleetConfig) {
			if c.Off {
				config.Retention = schema.RetentionPolicy{}
			}
			for from, to := range map[*keepTime]*int64{
				c.Completed: &config.Retention.CompletedSeconds, c.Failed: &config.Retention.FailedSeconds, c.Cancelled: &config.Retention.CancelledSeconds,
				c.Grace: &config.Retention.GraceSeconds,
			} {
				if from != nil {
					*to = int64(time.Duration(*from) / time.Second)
				}
			}
		})
		if err != nil {
			return err
		}
		policy = now.Retention
	}
	if a.JSON {
		return output.Line(a.Stdout, retentionView{Fleet: cl.Fleet, Retention: policy})
	}
	return output.Fields(a.Stdout, "fleet", cl.Fleet, "kept", policy.String())
}
