package runs

import (
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
)

// maxPayload bounds a payload that is read from a file or standard input, in bytes.
const maxPayload = 1 << 20

// payloadFlags are the two forms of a payload.
type payloadFlags struct {
	Payload *string `xor:"payload" placeholder:"JSON" help:"Content as JSON; @FILE reads a file, @- standard input."`
	Text    *string `xor:"payload" placeholder:"TEXT" help:"Content as text."`
}

// read returns the payload as JSON; nil if there is none.
func (f payloadFlags) read(a *base.App) (jsontext.Value, error) {
	switch {
	case f.Text != nil:
		b, err := json.Marshal(*f.Text)
		if err != nil {
			return nil, failure.New(failure.Usage, "use --payload", "--text is not UTF-8")
		}
		return b, nil
	case f.Payload == nil:
		return nil, nil
	}
	text := *f.Payload
	if file, ok := strings.CutPrefix(text, "@"); ok {
		b, err := readFile(a, file, "name the file with the payload, as JSON", maxPayload, "store it elsewhere and send its location")
		if err != nil {
			return nil, err
		}
		text = strings.TrimSpace(string(b))
	}
	if v := jsontext.Value(text); !v.IsValid() {
		return nil, failure.New(failure.Usage, "quote text to make it JSON, or use --text", "--payload is not JSON")
	}
	return jsontext.Value(text), nil
}
