package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// otlpReceiver is the OTLP receiver of a script: it keeps how often each span came.
type otlpReceiver struct {
	mu    sync.Mutex
	spans map[string]int
}

func (r *otlpReceiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	message := new(tracepb.TracesData)
	if err == nil {
		err = proto.Unmarshal(body, message)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range message.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans[fmt.Sprintf("%x %s", s.GetSpanId(), s.GetName())]++
			}
		}
	}
}

// state is how many different spans came, and how many came more than once.
func (r *otlpReceiver) state() (all, again int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.spans {
		if n > 1 {
			again++
		}
	}
	return len(r.spans), again
}

const receiverKey = serverKey("otlp")

// scriptCollector starts an OTLP receiver, whose address becomes $OTLP: collector.
func scriptCollector(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: collector")
	}
	r, ok := ts.Value(receiverKey).(*otlpReceiver)
	if !ok {
		ts.Fatalf("no receiver is prepared")
	}
	server := httptest.NewServer(r)
	ts.Defer(server.Close)
	ts.Setenv("OTLP", server.URL)
}

// scriptSpans waits until so many different spans came, none of them twice: spans N.
func scriptSpans(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	if neg || len(args) != 1 || err != nil {
		ts.Fatalf("usage: spans N")
	}
	r, _ := ts.Value(receiverKey).(*otlpReceiver)
	limit := time.After(startLimit)
	for {
		all, again := r.state()
		if again > 0 {
			ts.Fatalf("%d spans came twice", again)
		}
		if all == want {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-limit:
			ts.Fatalf("%d spans came, want %d: %v", all, want, r.spans)
		}
	}
}
