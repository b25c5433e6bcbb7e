package form

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Usage reads the token counts of a model call, with the names of any form. It returns nil if the value is not an
// object.
func Usage(v jsontext.Value) *schema.Usage {
	o, ok := ParseObject(v)
	if !ok {
		return nil
	}
	first := func(o *Object, names ...string) int64 {
		for _, name := range names {
			if v, ok := o.Get(name); ok {
				if n, ok := Integer(v); ok && n >= 0 {
					return n
				}
			}
		}
		return 0
	}
	u := &schema.Usage{
		InputTokens:              first(o, "prompt_tokens", "input_tokens"),
		OutputTokens:             first(o, "completion_tokens", "output_tokens"),
		CacheReadInputTokens:     first(o, "cache_read_input_tokens"),
		CacheCreationInputTokens: first(o, "cache_creation_input_tokens"),
	}
	for _, name := range []string{"prompt_tokens_details", "input_tokens_details"} {
		if d, ok := TakeObject(o, name); ok {
			u.CacheReadInputTokens = first(d, "cached_tokens")
		}
	}
	for _, name := range []string{"completion_tokens_details", "output_tokens_details"} {
		if d, ok := TakeObject(o, name); ok {
			u.ReasoningOutputTokens = first(d, "reasoning_tokens")
		}
	}
	return u
}
