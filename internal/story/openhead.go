package story

import (
	"context"
	"maps"
	"strings"
	"unicode/utf8"

	"github.com/waymarkio/waymark/internal/encrypted"
	"github.com/waymarkio/waymark/schema"
)

// Keyed has pages of runs' records, and may have keys of encrypted content.
type Keyed interface {
	Pages
	// HasKeys reports whether there are keys.
	HasKeys() bool
}

// maxTask is how many bytes of a decrypted task are shown, as many as of a readable one.
const maxTask = 256

// OpenHead decrypts the task and the labels of a head, as far as there are keys. A head has only [schema.EncryptedText] in their place: they
// stand in the first record of the run.
func OpenHead(ctx context.Context, pages Keyed, h *schema.Head) error {
	closed := h.Task == schema.EncryptedText
	for _, label := range h.Labels {
		closed = closed || label == schema.EncryptedText
	}
	if !closed || !pages.HasKeys() {
		return nil
	}
	reply := new(schema.RecordsReply)
	if err := pages.Ask(ctx, schema.VerbRecords, h.Run, &schema.RecordsRequest{From: 1, Limit: 1}, reply); err != nil {
		return err
	}
	for i := range reply.Records {
		e, err := reply.Records[i].Decode()
		if err != nil {
			return err
		}
		if e == nil {
			continue
		}
		data, err := schema.ParseData(e)
		if err != nil {
			return err
		}
		if d, ok := data.(*schema.RunStartedData); ok {
			_ = pages.Decrypt(ctx, e, d) // what stays encrypted is shown as that
			openStarted(h, d)
		}
	}
	return nil
}

// token is a name as a JSON pointer has it.
var token = strings.NewReplacer("~", "~0", "/", "~1")

// openStarted puts what was decrypted of a run's start into its head.
func openStarted(h *schema.Head, d *schema.RunStartedData) {
	if h.Task == schema.EncryptedText && encrypted.KeyOf(d.Refs, "/task") == "" {
		h.Task = d.Task
		if cut := min(len(d.Task), maxTask); cut < len(d.Task) {
			for cut > 0 && !utf8.RuneStart(d.Task[cut]) {
				cut--
			}
			h.Task = d.Task[:cut] + "…"
		}
	}
	h.Labels = maps.Clone(h.Labels)
	for name, label := range h.Labels {
		if label == schema.EncryptedText && encrypted.KeyOf(d.Refs, "/labels/"+token.Replace(name)) == "" {
			h.Labels[name] = d.Labels[name]
		}
	}
}
