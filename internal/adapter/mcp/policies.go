package mcp

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/waymarkio/waymark/internal/adapter/session"
	"github.com/waymarkio/waymark/schema"
)

// Policy says what becomes of a call in doubt.
type Policy struct {
	Replay schema.Replay
	// Verify is the tool that is asked about a call of the policy verify.
	Verify string
}

// Policies are the policies of tools by name.
type Policies map[string]Policy

// ReadPolicies reads a file of lines such as "search = pure" and "charge = verify find_charge". An empty name means no
// file.
func ReadPolicies(file string) (Policies, error) {
	policies := make(Policies)
	err := session.EachLine(file, func(line string) error {
		words := append(strings.Fields(line), "", "", "")
		policy := Policy{schema.Replay(words[2]), words[3]}
		known := []schema.Replay{schema.ReplayPure, schema.ReplayIdempotent, schema.ReplayHold, schema.ReplayVerify}
		if words[1] != "=" || !slices.Contains(known, policy.Replay) || (policy.Verify != "") != (policy.Replay == schema.ReplayVerify) {
			return errors.New("write TOOL = pure, idempotent or hold, or TOOL = verify and the name of the tool to ask")
		}
		policies[words[0]] = policy
		return nil
	})
	if err != nil {
		return nil, err
	}
	return policies, nil
}

// policy of a call: by the annotations of its tool, or the stricter one of the file. A file may always name a verify tool,
// because no call runs again without its answer. The tools are listed before the first call, and for a tool that is not
// among them.
func (p *proxy) policy(ctx context.Context, c *params) schema.Replay {
	p.mu.Lock()
	tools, meta := p.tools, p.meta
	p.mu.Unlock()
	if _, ok := tools[c.Name]; !ok {
		tools = p.list(ctx, meta)
		p.mu.Lock()
		p.tools = tools
		p.mu.Unlock()
	}
	own := cmp.Or(p.Policies[c.Name].Replay, schema.ReplayPure)
	if own == schema.ReplayVerify || p.Trust && p.Policies[c.Name].Replay != "" {
		return own
	}
	return schema.Stricter(own, tools[c.Name])
}

// list returns the policies of the server's tools by their annotations, and says which tools of the file there are not.
func (p *proxy) list(ctx context.Context, meta map[string]jsontext.Value) map[string]schema.Replay {
	tools, cursor, unknown := make(map[string]schema.Replay), "", []string(nil)
	for more := true; more; more = cursor != "" {
		var page struct {
			Tools []struct {
				Name        string              `json:"name"`
				Annotations mcp.ToolAnnotations `json:"annotations"`
			} `json:"tools"`
			Cursor string `json:"nextCursor"`
		}
		text, err := p.ask(ctx, "tools/list", struct {
			Cursor string                    `json:"cursor,omitzero"`
			Meta   map[string]jsontext.Value `json:"_meta,omitzero"`
		}{cursor, meta})
		if err == nil {
			err = decode(text, &page)
		}
		if err == nil && page.Cursor != "" && page.Cursor == cursor {
			err = errors.New("the server names the same page again")
		}
		if err != nil {
			p.Log.Warn().Err(err).Msg("tools were not listed: their calls are held in doubt")
			return tools
		}
		cursor = page.Cursor
		for _, t := range page.Tools {
			switch tools[t.Name] = schema.ReplayHold; {
			case t.Annotations.ReadOnlyHint:
				tools[t.Name] = schema.ReplayPure
			case t.Annotations.IdempotentHint:
				tools[t.Name] = schema.ReplayIdempotent
			}
		}
	}
	for name, policy := range p.Policies {
		for _, name := range []string{name, cmp.Or(policy.Verify, name)} {
			if tools[name] == "" {
				unknown = append(unknown, name)
			}
		}
	}
	if slices.Sort(unknown); unknown != nil {
		p.Log.Warn().Strs("tools", slices.Compact(unknown)).Msg("the file of policies names tools that the server does not list")
	}
	return tools
}

func verifySubject(run string) string { return "verify.mcp." + run }

// verify asks the verify tool of a call in doubt.
func (p *proxy) verify(ctx context.Context, q schema.VerifyRequest) (reply schema.VerifyReply, err error) {
	p.mu.Lock()
	meta := with(maps.Clone(p.meta), keyMeta, q.IdempotencyKey)
	p.mu.Unlock()
	text, err := p.ask(ctx, "tools/call", params{Name: p.Policies[q.Name].Verify, Arguments: q.Arguments, members: members{Meta: meta}})
	if err != nil {
		return reply, err
	}
	var result struct {
		Structured jsontext.Value `json:"structuredContent"`
		Content    []struct {
			Text string `json:"text"`
		} `json:"content"`
	}
	err = decode(text, &result)
	if len(result.Content) > 0 && result.Structured == nil {
		result.Structured = jsontext.Value(result.Content[0].Text)
	}
	if err == nil {
		err = decode(result.Structured, &reply)
	}
	if err == nil && reply.Result == nil {
		reply.Result = text
	}
	return reply, err //nolint:wrapcheck // it is told to a person
}
