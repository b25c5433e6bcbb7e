package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// types runs a line of the page: a command, and programs that it is piped to.
func (m *mission) types(line string) string {
	m.t.Helper()
	line, code := strings.CutSuffix(line, "; echo $?")
	commands := strings.Split(line, " | ")
	words := quoted.FindAllString(commands[0], -1)
	for i, word := range words {
		words[i] = strings.Trim(word, "'")
	}
	var out string
	var exit int
	switch words[0] {
	case "waymark":
		out, exit = m.waymark(words[1:])
	case "nats":
		out = m.nats(words[1:])
	case "curl":
		out = m.get(words[len(words)-1])
	case "cat":
		text, err := os.ReadFile(filepath.Join(m.dir, words[1]))
		require.NoError(m.t, err)
		out = string(text)
	case "ls":
		for _, name := range words[2:] {
			_, err := os.Stat(filepath.Join("..", "..", name))
			require.NoError(m.t, err)
		}
		out = strings.Join(slices.Sorted(slices.Values(words[2:])), "\n")
	case "go":
		command := exec.CommandContext(m.t.Context(), words[0], words[1:]...)
		command.Dir = filepath.Join("..", "..")
		text, err := command.Output()
		require.NoError(m.t, err)
		out = string(text)
	default:
		require.FailNow(m.t, "no such program", line)
	}
	if code {
		out += strconv.Itoa(exit) + "\n"
	} else {
		require.Zero(m.t, exit, "%s\n%s", line, out)
	}
	for _, filter := range commands[1:] {
		switch words := quoted.FindAllString(filter, -1); words[0] {
		case "jq":
			out = m.jq(out, strings.Trim(words[len(words)-1], "'"), words[1] == "-c")
		case "grep":
			var kept strings.Builder
			for line := range strings.Lines(out) {
				if regexp.MustCompile(strings.Trim(words[len(words)-1], "'")).MatchString(strings.TrimSuffix(line, "\n")) {
					kept.WriteString(line)
				}
			}
			out = kept.String()
			if strings.HasPrefix(words[1], "-c") {
				out = fmt.Sprintln(strings.Count(out, "\n"))
			}
		case "sort":
			require.Equal(m.t, "-u", words[1])
			out = strings.Join(slices.Compact(slices.Sorted(strings.Lines(out))), "")
		default:
			require.FailNow(m.t, "no such filter", filter)
		}
	}
	return out
}

// quoted finds the words of a command.
var quoted = regexp.MustCompile(`'[^']*'|[^\s']+`)

// waymark runs a command of waymark in the mission's directory, and returns what a terminal would show.
func (m *mission) waymark(args []string) (string, int) {
	m.t.Helper()
	columns := "100"
	for i, arg := range args {
		args[i] = strings.Replace(arg, ":9478", ":0", 1)
		if regexp.MustCompile(`^[\w-]+\.(json|md)$|^out$|^slow$`).MatchString(arg) {
			args[i], columns = filepath.Join(m.dir, arg), "" // the page has short names
		}
	}
	if args[0] == "serve" {
		line := ""
		line, m.slow = m.serve(args[1:]...)
		return strings.NewReplacer(m.dir+string(filepath.Separator), "", m.slow, "http://127.0.0.1:9478").Replace(line) + "\n", 0
	}
	code, out, complaints := m.ask(columns, "", args...)
	return strings.ReplaceAll(out+complaints, m.dir+string(filepath.Separator), ""), code
}

// serve runs a daemon, and returns its first line and where its health and metrics are.
func (m *mission) serve(args ...string) (line, address string) {
	m.t.Helper()
	dir := filepath.Join(m.dir, "served")
	line, stop, err := startDaemon(args, func(name string) string {
		return map[string]string{"WAYMARK_STATE_DIR": dir, "WAYMARK_QUOTA": "64MiB"}[name]
	})
	require.NoError(m.t, err)
	m.t.Cleanup(func() {
		code, stderr := stop()
		require.Zero(m.t, code, stderr)
	})
	return line, regexp.MustCompile(` http=(\S+)`).FindStringSubmatch(line)[1]
}

// get is the answer of a daemon's health and metrics: that on port 9478 is the one of row 18, the other one a second daemon of the fleet.
func (m *mission) get(url string) string {
	m.t.Helper()
	path := url[strings.LastIndex(url, "/"):]
	if strings.Contains(url, ":9478/") {
		return m.body(m.slow + path)
	}
	if m.http == "" {
		_, m.http = m.serve("--context", filepath.Join(m.StateDir(), "nats", "waymark.json"), "--http", "127.0.0.1:0", "--no-fold")
	}
	return m.body(m.http + path)
}

func (m *mission) body(url string) string {
	m.t.Helper()
	request, err := http.NewRequestWithContext(m.t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(m.t, err)
	client := http.Client{Timeout: startLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(m.t, err)
	text, err := io.ReadAll(response.Body)
	require.NoError(m.t, err)
	require.NoError(m.t, response.Body.Close())
	return string(text)
}

// nats does what the nats command does, with nats.go alone.
func (m *mission) nats(args []string) string {
	m.t.Helper()
	ctx := m.t.Context()
	last := args[len(args)-1]
	js, err := jetstream.New(m.nc)
	require.NoError(m.t, err)
	switch command := strings.Join(args[:min(2, len(args))], " "); command {
	case "req --raw":
		reply, err := m.nc.Request(args[2], []byte(last), startLimit)
		require.NoError(m.t, err)
		return string(reply.Data) + "\n"
	case "kv get":
		kv, err := js.KeyValue(ctx, args[2])
		require.NoError(m.t, err)
		entry, err := kv.Get(ctx, args[3])
		require.NoError(m.t, err)
		return string(entry.Value()) + "\n"
	case "kv ls":
		kv, err := js.KeyValue(ctx, args[2])
		require.NoError(m.t, err)
		keys, err := kv.ListKeysFiltered(ctx, last)
		require.NoError(m.t, err)
		var names []string
		for key := range keys.Keys() {
			names = append(names, key)
		}
		slices.Sort(names)
		return strings.Join(names, "\n") + "\n"
	case "sub --stream":
		return m.stored(js, args, last)
	case "sub --headers-only", "sub --raw", "sub " + last:
		return m.received(last, args[1])
	default:
		require.FailNow(m.t, "no such command of nats", command)
		return ""
	}
}

// stored are the messages of a stream, as nats sub --stream STREAM --all --headers-only --count N shows them.
func (m *mission) stored(js jetstream.JetStream, args []string, subject string) string {
	m.t.Helper()
	stream := args[2]
	require.Equal(m.t, []string{"--all", "--headers-only", "--count"}, args[3:6])
	count, err := strconv.ParseUint(args[6], 10, 64)
	require.NoError(m.t, err)
	consumer, err := js.OrderedConsumer(m.t.Context(), stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	require.NoError(m.t, err)
	var b strings.Builder
	for i := range count {
		msg, err := consumer.Next(jetstream.FetchMaxWait(startLimit))
		require.NoError(m.t, err)
		meta, err := msg.Metadata()
		require.NoError(m.t, err)
		fmt.Fprintf(&b, "[#%d] Received JetStream message: stream: %s seq %d / subject: %s / time: %s\n", i+1, stream, meta.Sequence.Stream, msg.Subject(), meta.Timestamp.UTC().Format(time.RFC3339))
		writeHeaders(&b, msg.Headers())
	}
	return b.String()
}

// received is what a subscriber to a subject was sent, as nats sub shows it, with --raw or --headers-only.
func (m *mission) received(subject, how string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	tokens := regexp.MustCompile(`^` + strings.ReplaceAll(strings.ReplaceAll(regexp.QuoteMeta(subject), `\*`, `[^.]+`), `>`, `.+`) + `$`)
	var b strings.Builder
	number := 0
	for _, msg := range m.heard {
		if !tokens.MatchString(msg.Subject) {
			continue
		}
		number++
		if how == "--raw" {
			b.WriteString(string(msg.Data) + "\n")
			continue
		}
		fmt.Fprintf(&b, "[#%d] Received on %q\n", number, msg.Subject)
		writeHeaders(&b, msg.Header)
		if how != "--headers-only" {
			b.WriteString(string(msg.Data) + "\n\n")
		}
	}
	return b.String()
}

// writeHeaders writes what the CloudEvents binding says of headers; those of NATS itself are left out.
func writeHeaders(b *strings.Builder, h nats.Header) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if strings.HasPrefix(name, "ce-") {
			fmt.Fprintf(b, "%s: %s\n", name, h.Get(name))
		}
	}
	b.WriteString("\n")
}

// jq knows paths, separated by commas: .a.b[0].c, and .a[] for each element.
func (m *mission) jq(text, filter string, compact bool) string {
	m.t.Helper()
	var out bytes.Buffer
	for document := json.NewDecoder(strings.NewReader(text)); ; {
		var value json.RawMessage
		if err := document.Decode(&value); err == io.EOF {
			return out.String()
		} else {
			require.NoError(m.t, err, text)
		}
		for path := range strings.SplitSeq(filter, ", ") {
			for _, found := range m.at(value, path) {
				if compact {
					require.NoError(m.t, json.Compact(&out, found))
				} else {
					require.NoError(m.t, json.Indent(&out, found, "", "  "))
				}
				out.WriteString("\n")
			}
		}
	}
}

var step = regexp.MustCompile(`\.(\w+)|\[(\d*)\]`)

func (m *mission) at(value json.RawMessage, path string) []json.RawMessage {
	m.t.Helper()
	values := []json.RawMessage{value}
	for _, s := range step.FindAllStringSubmatch(path, -1) {
		var next []json.RawMessage
		for _, v := range values {
			if s[1] != "" {
				var members map[string]json.RawMessage
				require.NoError(m.t, json.Unmarshal(v, &members), path)
				if members[s[1]] == nil {
					members[s[1]] = json.RawMessage("null")
				}
				next = append(next, members[s[1]])
				continue
			}
			var elements []json.RawMessage
			require.NoError(m.t, json.Unmarshal(v, &elements), path)
			if s[2] != "" {
				i, err := strconv.Atoi(s[2])
				require.NoError(m.t, err)
				elements = elements[i : i+1]
			}
			next = append(next, elements...)
		}
		values = next
	}
	return values
}
