package encryption_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/schema"
)

// requests are all types of requests, with a canary in the content.
var requests = []any{
	schema.InputRequest{InterruptID: "i", Payload: jsontext.Value(`"canary"`), By: "ann"},
	schema.SignalRequest{SignalID: "s", Name: "note", Payload: jsontext.Value(`"canary"`), By: "ann"},
	schema.SettleRequest{CallKey: schema.CallKey{Turn: 1, ToolCallID: "a", Occurrence: 1}, How: schema.SettledDecided, Result: jsontext.Value(`"canary"`), By: "ann"},
	schema.CancelRequest{By: "ann", Reason: "canary"},
	schema.HandoffRequest{HandoffID: "h", Action: schema.HandoffAccept, By: "ann", Reason: "canary"},
	schema.HandoffRequest{HandoffID: "h", Action: schema.HandoffDecline, By: "ann", Reason: "canary"},
	schema.HandoffRequest{HandoffID: "h", Action: schema.HandoffClose, By: "ann", Reason: "canary"},
	schema.GetRequest{},
	schema.ListRequest{},
	schema.RecoverRequest{},
	schema.ClaimRequest{},
	schema.MarkRequest{},
	schema.ForkRequest{},
	schema.FleetRequest{},
	schema.ExecutorsRequest{},
	schema.CleanupRequest{},
	schema.EraseRequest{},
	schema.RecordsRequest{},
	schema.PauseRequest{},
	schema.LimitRequest{},
	schema.ScheduleRequest{}, // the command refuses a task for a fleet with keys
}

func runHas(ids ...string) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return ids, nil }
}

// Each type of request is known: a new one cannot be sent until it is.
func TestRequest_EachType_IsEncryptedOrHasNoContent(t *testing.T) {
	t.Parallel()
	tested := map[string]bool{"VerifyRequest": true} // a question to a tool, which is not for the service
	for _, request := range requests {
		name := reflect.TypeOf(request).Name()
		tested[name] = true
		pointer := reflect.New(reflect.TypeOf(request))
		pointer.Elem().Set(reflect.ValueOf(request))
		for _, r := range []any{request, pointer.Interface()} {
			before, err := json.Marshal(r)
			require.NoError(t, err)
			_, content := reflect.TypeOf(request).FieldByName("Refs")
			has, err := encryption.HasContent(r)
			require.NoError(t, err)
			require.Equal(t, content, has, name)
			out, err := keys("k1").Request(t.Context(), "r1", r, runHas("k1"))
			require.NoError(t, err)
			text, err := json.Marshal(out)
			require.NoError(t, err)
			require.NotContains(t, string(text), "canary", "%T", r)
			require.Equal(t, content, strings.Contains(string(text), `"by":"ann"`), "%T keeps its other members", r)
			require.Equal(t, content, strings.Contains(string(text), `"key_id":"k1"`), "%T", r)
			after, err := json.Marshal(r)
			require.NoError(t, err)
			require.Equal(t, before, after, "the caller's request stays")
			again, err := keys("k1").Request(t.Context(), "r1", out, runHas("k1"))
			require.NoError(t, err)
			require.Equal(t, out, again, "it is encrypted already")
		}
	}
	files, err := filepath.Glob("../../../schema/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && strings.HasSuffix(spec.Name.Name, "Request") {
				require.True(t, tested[spec.Name.Name], "add %s to the requests of this test and of loggedBy", spec.Name.Name)
			}
			return true
		})
	}
	for _, k := range []*encryption.Keys{keys("k1"), nil} {
		_, err = k.Request(t.Context(), "r1", struct{ Text string }{"canary"}, runHas("k1"))
		require.ErrorIs(t, err, encryption.ErrNoPlace, "an unknown type may have content")
	}
}

// Every reader of the run can read a request, which makes the run need no other key.
func TestRequest_KeysOfTheRun_NewestThatIsThere(t *testing.T) {
	t.Parallel()
	request := schema.SignalRequest{SignalID: "s", Name: "note", Payload: jsontext.Value(`"canary"`), By: "ann"}
	ask := func(k *encryption.Keys, ids ...string) (string, error) {
		out, err := k.Request(t.Context(), "r1", request, runHas(ids...))
		if err != nil {
			return "", err
		}
		text, err := json.Marshal(out)
		return string(text), err
	}
	for _, c := range []struct {
		keys *encryption.Keys
		run  []string
		want string
	}{
		{keys("k2", "k1"), []string{"k1"}, `"key_id":"k1"`},
		{keys("k1", "k2"), []string{"k1", "k2"}, `"key_id":"k2"`},
		{keys("k1"), []string{"k1", "k2"}, `"key_id":"k1"`},
		{keys("k1"), nil, "canary"},
		{nil, []string{"k1"}, "canary"},
	} {
		text, err := ask(c.keys, c.run...)
		require.NoError(t, err)
		require.Contains(t, text, c.want)
	}
	_, err := ask(keys("k2"), "k1")
	require.ErrorIs(t, err, encryption.ErrNoKey)
	require.ErrorContains(t, err, "run r1 is encrypted with key k1")
	sealed := errors.New("the vault is sealed")
	_, err = ask(&encryption.Keys{Current: "k1", Key: func(context.Context, string) ([]byte, error) { return nil, sealed }}, "k1")
	require.ErrorIs(t, err, sealed)
	out, err := keys("k1").Request(t.Context(), "r1", schema.CancelRequest{By: "ann"}, func(context.Context) ([]string, error) { return nil, sealed })
	require.NoError(t, err, "without content nothing is asked")
	require.Equal(t, schema.CancelRequest{By: "ann"}, out)
}
