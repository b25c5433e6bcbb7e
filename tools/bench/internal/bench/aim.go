package bench

// Aim is a figure of the design, and the measured one.
type Aim struct {
	// What in words.
	What string `json:"what"`
	// AtMost or AtLeast is to be reached.
	AtMost  *float64 `json:"at_most,omitzero"`
	AtLeast *float64 `json:"at_least,omitzero"`
	// Value as measured, and whether it is good enough.
	Value   float64 `json:"value"`
	Reached bool    `json:"reached"`
	// Goal is the line of the design's table that the aim belongs to; empty for an aim that the table does not have. At tells it
	// from other measurements of that line: "64 runs".
	Goal Goal   `json:"goal,omitzero"`
	At   string `json:"at,omitzero"`
	// Ours and Raw are the figures of which Value is the ratio; absent when it is none.
	Ours *float64 `json:"ours,omitzero"`
	Raw  *float64 `json:"raw,omitzero"`
}

// AtMost adds an aim and returns it, to be completed; it adds nothing and returns nil when the value was not measured.
func (r *Result) AtMost(what string, value *float64, limit float64) *Aim {
	if value == nil {
		return nil
	}
	return r.addAim(Aim{What: what, AtMost: &limit, Value: *value, Reached: *value <= limit})
}

// AtLeast adds an aim and returns it, to be completed; it adds nothing and returns nil when the value was not measured.
func (r *Result) AtLeast(what string, value *float64, limit float64) *Aim {
	if value == nil {
		return nil
	}
	return r.addAim(Aim{What: what, AtLeast: &limit, Value: *value, Reached: *value >= limit})
}

func (r *Result) addAim(a Aim) *Aim {
	r.Aims = append(r.Aims, a)
	return &r.Aims[len(r.Aims)-1]
}

// For says which line of the design's table the aim belongs to, and what tells it from other measurements of that line;
// at may be empty. It does nothing to nil.
func (a *Aim) For(goal Goal, at string) *Aim {
	if a != nil {
		a.Goal, a.At = goal, at
	}
	return a
}

// Compares records the two figures whose ratio is the value. It does nothing to a nil aim.
func (a *Aim) Compares(ours, raw *float64) {
	if a != nil {
		a.Ours, a.Raw = ours, raw
	}
}

// limit is what is to be reached, in words.
func (a *Aim) limit() string {
	switch {
	case a.AtMost != nil:
		return "at most " + number(a.AtMost)
	case a.AtLeast != nil:
		return "at least " + number(a.AtLeast)
	}
	return ""
}

// verdict is whether it was.
func (a *Aim) verdict() string {
	if a.Reached {
		return "reached"
	}
	return "missed"
}
