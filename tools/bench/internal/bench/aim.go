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
}

// AtMost adds an aim; it adds nothing when the value was not measured.
func (r *Result) AtMost(what string, value *float64, limit float64) {
	if value != nil {
		r.Aims = append(r.Aims, Aim{What: what, AtMost: &limit, Value: *value, Reached: *value <= limit})
	}
}

// AtLeast adds an aim; it adds nothing when the value was not measured.
func (r *Result) AtLeast(what string, value *float64, limit float64) {
	if value != nil {
		r.Aims = append(r.Aims, Aim{What: what, AtLeast: &limit, Value: *value, Reached: *value >= limit})
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
