package cli

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/rogpeppe/go-internal/testscript"
)

// scriptSame compares two JSON files as values: same FILE FILE.
func scriptSame(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: same FILE FILE")
	}
	var values [2]jsontext.Value
	for i, name := range args {
		values[i] = jsontext.Value(ts.ReadFile(name))
		if err := values[i].Canonicalize(); err != nil {
			ts.Fatalf("%s: %v", name, err)
		}
	}
	if !bytes.Equal(values[0], values[1]) {
		ts.Fatalf("they differ:\n%s\n%s", values[0], values[1])
	}
}

// scriptBigChat writes a conversation of so many MiB: bigchat FILE MIB. Its id is big.
func scriptBigChat(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: bigchat FILE MIB")
	}
	size, err := strconv.Atoi(args[1])
	if err != nil {
		ts.Fatalf("%v", err)
	}
	page := strings.Repeat("Once upon a time there was a very long story. ", (128<<10)/46)
	var b bytes.Buffer
	b.WriteString(`{"id":"big","messages":[{"role":"user","content":"tell me a long story"}`)
	for i := range size * 8 {
		fmt.Fprintf(&b, `,{"role":"assistant","content":"%s"},{"role":"user","content":"go on, part %d"}`, page, i)
	}
	b.WriteString("]}\n")
	if err := os.WriteFile(ts.MkAbs(args[0]), b.Bytes(), 0o600); err != nil {
		ts.Fatalf("%v", err)
	}
}
