package transcriptcheck

import (
	"bytes"
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// Export compares a complete export with the source: every member of every line or document, lines and lists in
// order. It returns the first difference, which wraps [ErrDifferent].
func (c *Conversation) Export(export []byte) error {
	var got any
	var err error
	if c.Format == ClaudeCode {
		got, err = values(export)
	} else {
		got, err = parse(export)
	}
	if err == nil {
		err = equal("", c.Whole, got)
	}
	if err != nil {
		return fmt.Errorf("export of %s: %w", c.Name, err)
	}
	return nil
}

// values reads a value a line.
func values(export []byte) ([]any, error) {
	var list []any
	for i, line := range bytes.Split(export, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		v, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		list = append(list, v)
	}
	return list, nil
}

// State compares the calls, results and token counts of a folded state with the source's.
func (c *Conversation) State(s *schema.State) error {
	if err := c.calls(s); err != nil {
		return fmt.Errorf("state of %s: %w", s.Head.Run, err)
	}
	if err := c.usage(s); err != nil {
		return fmt.Errorf("state of %s: %w", s.Head.Run, err)
	}
	if n := s.Head.Counts.DeadLetters; n != 0 {
		return fmt.Errorf("state of %s: %w: %d dead letters", s.Head.Run, ErrDifferent, n)
	}
	return nil
}

func (c *Conversation) calls(s *schema.State) error {
	for i := range min(len(c.Calls), len(s.Calls)) {
		want, got := &c.Calls[i], &s.Calls[i]
		path := fmt.Sprintf("/calls/%d", i)
		switch {
		case want.ID != got.ToolCallID:
			return differ(path+"/id", "want %q, got %q", want.ID, got.ToolCallID)
		case want.Turn != int(got.Turn):
			return differ(path+"/turn", "want %d, got %d", want.Turn, got.Turn)
		case want.Name != got.Name:
			return differ(path+"/name", "want %q, got %q", want.Name, got.Name)
		}
		if err := same(path+"/arguments", want.Arguments, got.Arguments); err != nil {
			return err
		}
		if returned := got.Outcome == schema.OutcomeReturned; returned != want.HasResult {
			return differ(path+"/outcome", "want a result: %t, got %s", want.HasResult, got.Outcome)
		}
		if err := same(path+"/result", want.Result, got.Result); err != nil {
			return err
		}
		if b, ok := want.IsError.(bool); ok && (got.IsError == nil || *got.IsError != b) {
			return differ(path+"/is_error", "want %t", b)
		} else if !ok && got.IsError != nil {
			return differ(path+"/is_error", "want none, got %t", *got.IsError)
		}
	}
	if len(c.Calls) != len(s.Calls) {
		return differ("/calls", "want %d calls, got %d", len(c.Calls), len(s.Calls))
	}
	return nil
}

// same compares a decoded value with JSON text; no text is like null.
func same(path string, want any, got []byte) error {
	if len(got) == 0 {
		if want == nil {
			return nil
		}
		return differ(path, "is missing, want %s", show(want))
	}
	v, err := parse(got)
	if err != nil {
		return differ(path, "is not JSON: %v", err)
	}
	return equal(path, want, v)
}

func (c *Conversation) usage(s *schema.State) error {
	var sum, folded [4]int64
	for i := range min(len(c.Usage), len(s.Turns)) {
		var got [4]int64
		if a := s.Turns[i].Answer; a != nil && a.Usage != nil {
			u := a.Usage
			got = [4]int64{u.InputTokens, u.OutputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens}
		}
		if got != c.Usage[i] {
			return differ(fmt.Sprintf("/turns/%d/usage", i), "want %v, got %v", c.Usage[i], got)
		}
		for j := range sum {
			sum[j] += c.Usage[i][j]
		}
	}
	if len(c.Usage) != len(s.Turns) {
		return differ("/turns", "want %d turns, got %d", len(c.Usage), len(s.Turns))
	}
	u := s.Head.Usage
	folded = [4]int64{u.InputTokens, u.OutputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens}
	if sum != folded {
		return differ("/head/usage", "want %v, got %v", sum, folded)
	}
	return nil
}
