package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
)

// The buyer orders once, wherever it is killed: the shop is a fake, and so is the API of the model.
func TestBuyer_KilledAnywhere_OrdersOnce(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		output := `{"type":"function_call","id":"fc_1","call_id":"call_1","name":"order","arguments":"{\"name\": \"tea\"}","status":"completed"}`
		if strings.Contains(string(body), "function_call_output") {
			output = `{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Ordered.","annotations":[]}]}`
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"id":"resp_1","object":"response","status":"completed","model":"gpt","output":[%s]}`, output)
	}))
	defer api.Close()
	shop := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer shop.Close()
	t.Setenv("SHOP_URL", shop.URL)
	client := openai.NewClient(option.WithBaseURL(api.URL+"/v1/"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
		return buyer(client, &http.Client{Transport: out.Transport(nil)}).Work
	})
}
