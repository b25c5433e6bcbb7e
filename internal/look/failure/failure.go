package failure

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/schema"
)

// Code is the exit code of the process.
type Code int

// Exit codes; Codes explains them.
const (
	OK          Code = 0
	General     Code = 1
	Usage       Code = 2
	Unavailable Code = 3
	NotFound    Code = 4
	Conflict    Code = 5
	Damaged     Code = 6
	Refused     Code = 7
	Full        Code = 8
	Differs     Code = 9
	Interrupted Code = 130
)

// Codes is the table of exit codes, for help, documentation and tests.
var Codes = []struct {
	Code    Code
	Name    string
	Meaning string
}{
	{OK, "ok", "done; also after Ctrl-C ended a follower, or its reader exited"},
	{General, "failure", "any failure without a code of its own"},
	{Usage, "usage", "wrong flags, names, values or answers; nothing was done"},
	{Unavailable, "unavailable", "no server, no daemon, no answer in time, or a port in use: try again later"},
	{NotFound, "not found", "the run, question, hand-off, file or fleet does not exist, or no longer exists"},
	{Conflict, "conflict", "it exists, has ended, is quarantined or taken by another; call not in doubt"},
	{Damaged, "damaged", "input or stored data is broken or incomplete; the possible part was done"},
	{Refused, "refused", "wrong credentials, or no permission"},
	{Full, "full", "the fleet's quota or the disk is full; no data was lost"},
	{Differs, "differs", "two runs differ, a replay has other results, or an executor breaks a rule"},
	{Interrupted, "interrupted", "ended by Ctrl-C before it was done"},
}

// Error is an error with the exit code and the hint that a user gets.
type Error struct {
	Code Code
	What string
	Hint string
	// Own: the hint contains no text from outside, and its commands lack the flags that name the server.
	Own bool
	Err error
}

// Error returns what went wrong, without the hint.
func (f *Error) Error() string { return f.What }

// Unwrap returns the cause.
func (f *Error) Unwrap() error { return f.Err }

// New builds a failure without a cause.
func New(code Code, hint, format string, args ...any) error {
	return &Error{Code: code, What: fmt.Sprintf(format, args...), Hint: hint}
}

// failureReport is a failure for programs.
type failureReport struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitzero"`
	Code  Code   `json:"code"`
	// Name of the exit code.
	Name string `json:"name"`
}

// reported is the user's report of an error; nil if there is nothing to report.
func reported(ctx context.Context, err error, p prompt.Prompt) *failureReport {
	if err == nil || closedPipe(err) {
		return nil
	}
	f := Explain(ctx, err)
	hint := f.Advice(p)
	if SeedLike.MatchString(f.What) {
		hint = strings.TrimPrefix(hint+"; ", "; ") + "instead of a secret seed, name the file that holds it; create a new seed if others could see it"
	}
	r := &failureReport{Error: WithoutSeeds(f.What), Hint: WithoutSeeds(hint), Code: f.Code}
	for _, e := range Codes {
		if e.Code == f.Code {
			r.Name = e.Name
		}
	}
	return r
}

// Report prints err and its hint, and returns the exit code. Joined errors have one line each. Lines after the first
// are indented, so that no text from outside starts a line.
func Report(ctx context.Context, err error, p prompt.Prompt, stderr io.Writer) int {
	r := reported(ctx, err, p)
	if r == nil {
		return int(OK)
	}
	// There is nowhere to report that standard error is closed.
	for i, l := range strings.Split(r.Error, "\n") {
		begin := "waymark: "
		if i > 0 {
			begin = "  "
		}
		_, _ = fmt.Fprintf(stderr, "%s%s\n", begin, output.Printable(l))
	}
	if r.Hint != "" {
		_, _ = fmt.Fprintf(stderr, "hint: %s\n", output.Printable(r.Hint))
	}
	return int(r.Code)
}

// ReportJSON prints err as one JSON object on a line and returns the exit code.
func ReportJSON(ctx context.Context, err error, p prompt.Prompt, stderr io.Writer) int {
	r := reported(ctx, err, p)
	if r == nil {
		return int(OK)
	}
	_ = output.Line(stderr, r) // there is nowhere to report that standard error is closed
	return int(r.Code)
}

// SeedLike finds the seeds of NKeys, also mistyped or cut off. No public key begins with an S.
var SeedLike = regexp.MustCompile(`\bS[A-Z2-7]{24,}`)

// WithoutSeeds removes seeds from a message: a seed given instead of a public key, a path or an argument would be
// quoted in it.
func WithoutSeeds(text string) string {
	return SeedLike.ReplaceAllString(text, "(a secret seed, not printed)")
}

// Advice is the hint, with its commands as they are typed.
func (f *Error) Advice(p prompt.Prompt) string {
	if f.Own {
		return p.Fill(f.Hint)
	}
	return f.Hint
}

// Explain returns the exit code and hint of an error. A command with more context has already returned an [Error].
func Explain(ctx context.Context, err error) *Error {
	if f, ok := errors.AsType[*Error](err); ok {
		return f
	}
	if e, ok := errors.AsType[*access.Refusal](err); ok {
		return &Error{Code: Refused, What: e.What(), Hint: e.Hint(), Err: err}
	}
	if ctx.Err() != nil && !errors.Is(err, natsconn.ErrRefused) && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		return &Error{Code: Interrupted, What: "interrupted", Err: err}
	}
	for _, explain := range []func(error) *Error{
		explainBackup, explainServer, explainConnection, ExplainService, explainPublisher, ExplainStorage, explainInput, explainFile,
	} {
		if f := explain(err); f != nil {
			f.Err = err
			if f.What == "" {
				f.What = err.Error()
			}
			return f
		}
	}
	return &Error{Code: General, What: err.Error(), Err: err}
}

// explainFile explains errors of files that a command did not explain itself.
func explainFile(err error) *Error {
	var path *fs.PathError
	switch {
	case !errors.As(err, &path):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return &Error{Code: NotFound, Hint: "check the path: the file or its directory does not exist"}
	case errors.Is(err, fs.ErrPermission):
		return &Error{Code: General, Hint: "check this user's permissions on the file and its directory"}
	default:
		return &Error{Code: General, Hint: "check the path, the type of the file, and the free space on its disk"}
	}
}

const (
	hintServe       = "start one with: waymark serve"
	hintStateDir    = "set another directory with --state-dir or WAYMARK_STATE_DIR"
	hintCredentials = "check --creds, --user, --nkey or --token and their NATS_ variables; the local server of this machine (waymark serve) needs none: omit its address"
	hintCrowded     = "end programs of this role, or allow more: waymark fleet add FLEET --connections N, and reload the servers; the connections of a server that died count for up to four minutes"
	hintFleetFull   = "raise the quota (start the daemon with waymark serve --quota SIZE; with accounts: waymark fleet add NAME --quota SIZE), or remove runs: waymark cleanup"
)

// packageDir is the state directory of the service that the packages install.
var packageDir = "/var/lib/waymark"

func explainServer(err error) *Error {
	var down *natsconn.NotRunningError
	var locked *natsd.LockedError
	var full *natsd.DiskFullError
	switch {
	case errors.As(err, &locked):
		holder := "another process"
		if locked.PID != 0 {
			holder = fmt.Sprintf("process %d", locked.PID)
		}
		return &Error{
			Code: Conflict,
			What: fmt.Sprintf("state directory %s is in use by %s", locked.Dir, holder),
			Hint: "stop that process, or " + hintStateDir,
		}
	case errors.As(err, &down):
		hint := hintServe + ", or name another server with --nats or --context"
		if _, err := os.Stat(filepath.Join(packageDir, "endpoint.json")); down.Dir != packageDir && (err == nil || errors.Is(err, fs.ErrPermission)) {
			hint = "the service of the package runs in " + packageDir + ": use sudo waymark --state-dir " + packageDir
		}
		return &Error{
			Code: Unavailable, Hint: hint, Own: true,
			What: fmt.Sprintf("no waymark server is running in %s: %s", down.Dir, down.Reason),
		}
	case errors.Is(err, natsd.ErrPortInUse):
		what, _, _ := strings.Cut(err.Error(), ": stop what listens there")
		return &Error{Code: Unavailable, What: what, Hint: "stop what listens there, or choose another port: waymark serve --port 0 takes a free one", Own: true}
	case errors.As(err, &full):
		return &Error{Code: Unavailable, Hint: MakeRoom(full.Dir, full.Total)}
	case errors.Is(err, encryption.ErrKeyFile):
		return &Error{Code: Usage}
	case errors.Is(err, natsconn.ErrUnusable):
		return &Error{Code: General, Hint: hintStateDir}
	case errors.Is(err, natsd.ErrInvalidConfig):
		return &Error{Code: Usage, Hint: "see: waymark serve --help"}
	}
	return nil
}

func explainConnection(err error) *Error {
	switch {
	case errors.Is(err, natsconn.ErrSettings), errors.Is(err, natsconn.ErrUnknownContext):
		return &Error{Code: Usage, Hint: "see: waymark --help, section Which server"}
	case errors.Is(err, natsconn.ErrNoServer):
		return &Error{Code: Unavailable, Hint: hintServe, Own: true}
	case errors.Is(err, natsconn.ErrCrowded):
		return &Error{Code: Unavailable, Hint: hintCrowded}
	case errors.Is(err, natsconn.ErrRefused), errors.Is(err, nats.ErrPermissionViolation), errors.Is(err, nats.ErrAuthorization):
		return &Error{Code: Refused, Hint: hintCredentials}
	case errors.Is(err, nats.ErrConnectionClosed):
		return &Error{Code: Unavailable, Hint: "the server closed the connection for good, for example because the key was removed from its configuration: " +
			"start the daemon again, with a key that the server and the fleet know: waymark fleet keys", Own: true}
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return &Error{Code: Unavailable, Hint: "name the file with the CA certificates that signed the server's certificate: --tls-ca FILE, or NATS_CA in the environment"}
	case errors.As(err, new(x509.HostnameError)):
		return &Error{Code: Unavailable, Hint: "with --nats, use a name or an address from the server's certificate"}
	case errors.Is(err, natsconn.ErrUnreachable):
		return &Error{Code: Unavailable, Hint: "check the address and that the server runs; a local one: waymark serve"}
	}
	return nil
}

// serviceErrors has the exit code for each error of the daemon, and the next step at a prompt. Without one the daemon's
// hint stays.
var serviceErrors = map[schema.Code]sentinel{
	schema.CodeBadRequest:       {code: Usage},
	schema.CodeTooLarge:         {code: Usage},
	schema.CodeInvalidAnswer:    {code: Usage, hint: "see the question and its schema: waymark input RUN"},
	schema.CodeForbidden:        {code: Refused},
	schema.CodeNotFound:         {code: NotFound, hint: "list the runs with: waymark runs ls"},
	schema.CodeUnknownFleet:     {code: NotFound},
	schema.CodeUnknownInterrupt: {code: NotFound, hint: "it may have been answered already: waymark runs get RUN"},
	schema.CodeUnknownHandoff:   {code: NotFound, hint: "list its open hand-offs: waymark runs get RUN"},
	schema.CodePointNotFound:    {code: NotFound},
	schema.CodePointPurged:      {code: NotFound},
	schema.CodeErased:           {code: NotFound},
	schema.CodeConflict:         {code: Conflict},
	schema.CodeRunEnded:         {code: Conflict, hint: "see how it ended: waymark runs get RUN; to go on with it: waymark reopen RUN"},
	schema.CodeWrongAgent:       {code: Conflict},
	schema.CodeNotInDoubt:       {code: Conflict},
	schema.CodeRunFull:          {code: Conflict},
	schema.CodeHandoffTaken:     {code: Conflict, hint: "see which executor has it: waymark runs get RUN"},
	schema.CodeQuarantined:      {code: Conflict, hint: "find the event at which it stops: waymark events RUN --all --no-follow; then let the fleet try again: waymark release RUN"},
	schema.CodePaused:           {code: Conflict},
	schema.CodePointAmbiguous:   {code: Conflict},
	schema.CodeNeeded:           {code: Conflict},
	schema.CodeOverloaded:       {code: Unavailable},
	schema.CodeUnavailable:      {code: Unavailable, hint: "try again; if it happens again, run: waymark doctor"},
	schema.CodeTooManySignals:   {code: Unavailable, hint: "send it again later, when the run has consumed some: waymark runs get RUN"},
	schema.CodeDamaged:          {code: Damaged},
	schema.CodeStorageFull:      {code: Full},
}

// ExplainService explains the daemon's errors.
func ExplainService(err error) *Error {
	service, ok := errors.AsType[*schema.ServiceError](err)
	if !ok {
		return nil
	}
	known, ok := serviceErrors[service.Code]
	switch {
	case !ok:
		return &Error{Code: General, What: service.Message, Hint: service.Hint}
	case known.hint == "":
		return &Error{Code: known.code, What: service.Message, Hint: service.Hint}
	}
	return &Error{Code: known.code, What: service.Message, Hint: known.hint, Own: true}
}

// explainInput explains invalid names and broken stored data.
func explainInput(err error) *Error {
	var name *schema.NameError
	switch {
	case errors.As(err, &name):
		return &Error{Code: Usage, What: name.Error(), Hint: "ids look like: fix-login-2026-01-31", Err: err}
	case errors.Is(err, schema.ErrCorrupt), errors.Is(err, schema.ErrFormat):
		return &Error{Code: Damaged}
	}
	return nil
}
