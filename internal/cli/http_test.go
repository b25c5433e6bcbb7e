package cli

import (
	"io"
	"net/http"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptGet requests a URL and checks the status: get URL STATUS. The body becomes standard output.
func scriptGet(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: get URL STATUS")
	}
	client := http.Client{Timeout: startLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(args[0])
	if err != nil {
		ts.Fatalf("%v", err)
	}
	body, err := io.ReadAll(response.Body)
	if closeErr := response.Body.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		ts.Fatalf("%v", err)
	}
	if _, err := ts.Stdout().Write(body); err != nil {
		ts.Fatalf("%v", err)
	}
	if got := strconv.Itoa(response.StatusCode); got != args[1] {
		ts.Fatalf("status %s, want %s: %s", got, args[1], body)
	}
}
