package publisher

import (
	"context"
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/fleetclient"
	"github.com/waymarkio/waymark/schema"
)

// FuzzAnswers tries what the SDK is answered: errors of the daemon, a tool's word about a
// call, a person's about an approval, the content of a blob, and values that are searched for what is large or secret.
func FuzzAnswers(f *testing.F) {
	f.Add(uint8(0), "", "", "422", []byte(`{"code":"invalid_answer","message":"m","details":[{"path":"/a","problem":"p"}]}`))
	f.Add(uint8(1), "", "", "", []byte(`{"outcome":"done","result":{"a":1}}`))
	f.Add(uint8(2), "", "", "", []byte(`{"decision":"allow","reason":"r"}`))
	f.Add(uint8(3), "", "", "", []byte(`"text"`))
	f.Add(uint8(4), "", "", "", []byte(`{"a":{"b":["xxxxxxxxxxxxxxxx",1]},"password":"p"}`))
	f.Add(uint8(5), "", "", "", []byte(`{"at":1,"in":["a"],"deep":{"b":true}}`))
	f.Add(uint8(5), "", "", "", []byte(`"{\"at\":1.0}"`))
	tool := NewTool("look", "", Pure, func(_ context.Context, in struct {
		At   int             `json:"at"`
		In   []string        `json:"in,omitempty"`
		Deep map[string]bool `json:"deep,omitzero"`
	},
	) (int, error) {
		return in.At, nil
	})
	require.NoError(f, tool.prepare())
	redactor := newRedactor(&Redaction{Fields: []string{"password"}})
	f.Fuzz(func(t *testing.T, kind uint8, number, replyKind, code string, body []byte) {
		m := nats.NewMsg("_INBOX.x")
		for name, value := range map[string]string{schema.HeaderReply: number, schema.HeaderKind: replyKind, schema.HeaderErrorCode: code} {
			if value != "" {
				m.Header.Set(name, value)
			}
		}
		m.Data = body
		switch kind % 6 {
		case 0:
			if e, ok := fleetclient.ErrorOf(m).(*schema.ServiceError); ok { //nolint:errorlint // it is not wrapped
				require.Error(t, translate(e))
			}
		case 1:
			reply, err := readVerify(m)
			if err == nil {
				require.Contains(t, []string{schema.VerifyDone, schema.VerifyNotDone}, reply.Outcome)
				return
			}
			_, ok := errors.AsType[*unverified](err)
			require.True(t, ok, "%v", err)
		case 2:
			decision, _ := approvalOf(&schema.RunInputData{Payload: body})
			require.Contains(t, []string{schema.DecisionAllow, schema.DecisionDeny}, decision)
			if jsontext.Value(body).IsValid() {
				told := Signal{Name: "note", By: "ann", Payload: body}.Message()
				_, err := schema.MarshalData(&schema.MessageAddedData{Message: told})
				require.NoError(t, err, "a payload that is JSON can be told")
			}
		case 3:
			for _, target := range schema.Contents(&schema.MessageAddedData{Message: schema.Message{Parts: []schema.Part{{}}}}) {
				_ = target.Set(body) // it must not panic
			}
		case 5:
			if utf8.Valid(body) {
				data := &schema.RunStartedData{Task: string(body)}
				require.NoError(t, redactor.contents(data))
				require.Equal(t, string(body), data.Task, "a text without a secret")
			}
			if !tooDeep(body) && tool.check(body) == nil {
				_, err := tool.Run(t.Context(), Invocation{Arguments: body})
				require.NoError(t, err, "arguments that were accepted are not read")
			}
		case 4:
			if !jsontext.Value(body).IsValid() {
				return
			}
			_, size := largestField(body)
			require.LessOrEqual(t, size, len(body))
			out, err := redactor.value(body)
			require.NoError(t, err)
			require.True(t, jsontext.Value(out).IsValid())
		}
	})
}
