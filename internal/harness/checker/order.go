package checker

import "github.com/waymarkio/waymark/schema"

// order: an event whose operation began after another one had ended follows every event that the other published or
// saw. An executor that was told of a higher epoch was told after a takeover had begun.
func (c *runCheck) order() {
	if c.damaged() {
		return // the events between may be missing
	}
	began := c.takeoversBegan()
	taken := map[schema.Epoch]int64{}
	for i := range c.log {
		x := &c.log[i]
		if x.counts == 0 {
			continue
		}
		first := began[x.request]
		if x.request == "" {
			first = firstStart(x.ops)
		} else {
			taken[x.event.Epoch] = first
		}
		for _, before := range c.ops {
			if n := c.seen(before); before.End != 0 && before.End < first && n >= x.counts {
				c.add(RuleOrder, appendOps([]int64{before.ID}, x.ops), "event %s is the run's %d., and an operation that ended before it began had %d events already", x.event.ID, x.counts, n)
			}
		}
	}
	if c.opts.Unlogged {
		return // nor is it known when a takeover began
	}
	for _, op := range c.ops {
		if op.Kind != Publish || op.Evidence || op.Outcome != Failed || !op.Fenced || op.Epoch == 0 {
			continue
		}
		over := false
		for epoch, first := range taken {
			over = over || epoch > op.Epoch && first <= op.End
		}
		if !over {
			c.add(RuleOrder, []int64{op.ID}, "an executor was fenced, and no takeover had begun: %s", op)
		}
	}
}

// takeoversBegan are the times at which takeovers were first asked for, by request. An unknown request has the time 0.
func (c *runCheck) takeoversBegan() map[string]int64 {
	began := map[string]int64{}
	for _, op := range c.ops {
		if first, known := began[op.Request]; op.Kind == Takeover && (!known || op.Start < first) {
			began[op.Request] = op.Start
		}
	}
	return began
}

// firstStart is when the first of some operations began; 0 without one, so that nothing ended before it.
func firstStart(ops []*Op) int64 {
	first := int64(0)
	for i, op := range ops {
		if i == 0 || op.Start < first {
			first = op.Start
		}
	}
	return first
}

// seen is how many of the run's events an operation had published or seen when it ended.
func (c *runCheck) seen(op *Op) int {
	switch {
	case op.answered() && !c.told(op):
		return int(op.Answer.Events)
	case op.done():
		return c.counted(op)
	}
	return 0
}
