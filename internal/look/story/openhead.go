package story

import (
	"context"

	"github.com/waymarkio/waymark/schema"
)

// Keyed has pages of runs' records, and may have keys of encrypted content.
type Keyed interface {
	Pages
	// HasKeys reports whether there are keys.
	HasKeys() bool
}

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
			h.ShowStart(d)
		}
	}
	return nil
}
