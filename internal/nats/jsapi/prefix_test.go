package jsapi_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
)

func TestSubject_PrefixOrDomain_IsTheClientsOwn(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t).Conn(t)
	var asked string
	trace := jetstream.WithClientTrace(&jetstream.ClientTrace{RequestSent: func(subject string, _ []byte) { asked = subject }})
	for want, open := range map[string]func() (jetstream.JetStream, error){
		"$JS.API.INFO":     func() (jetstream.JetStream, error) { return jetstream.New(nc, trace) },
		"$JS.hub.API.INFO": func() (jetstream.JetStream, error) { return jetstream.NewWithDomain(nc, "hub", trace) },
		"js.acme.INFO":     func() (jetstream.JetStream, error) { return jetstream.NewWithAPIPrefix(nc, "js.acme", trace) },
		"js.dot.INFO":      func() (jetstream.JetStream, error) { return jetstream.NewWithAPIPrefix(nc, "js.dot.", trace) },
	} {
		js, err := open()
		require.NoError(t, err)
		_, _ = js.AccountInfo(t.Context()) // no server answers on the other subjects; the request's subject is enough
		require.Equal(t, want, asked)
		require.Equal(t, asked, jsapi.Subject(js, "INFO"))
	}
}
