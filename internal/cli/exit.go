package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/access"
	"github.com/waymarkio/waymark/internal/natsconn"
	"github.com/waymarkio/waymark/internal/natsd"
	"github.com/waymarkio/waymark/internal/permissions"
	"github.com/waymarkio/waymark/internal/statedir"
	"github.com/waymarkio/waymark/schema"
)

// exitCode is what the process ends with.
type exitCode int

// Exit codes; exitCodes explains them.
const (
	exitOK          exitCode = 0
	exitFailure     exitCode = 1
	exitUsage       exitCode = 2
	exitUnavailable exitCode = 3
	exitNotFound    exitCode = 4
	exitConflict    exitCode = 5
	exitDamaged     exitCode = 6
	exitRefused     exitCode = 7
	exitFull        exitCode = 8
	exitDiffers     exitCode = 9
	exitInterrupted exitCode = 130
)

// exitCodes is the one table of exit codes: help, documentation and tests read it.
var exitCodes = []struct {
	code    exitCode
	name    string
	meaning string
}{
	{exitOK, "ok", "done; also when a follower was ended with Ctrl-C or its reader went away"},
	{exitFailure, "failure", "any failure that no other code names"},
	{exitUsage, "usage", "wrong flags, names, values or answers; nothing was done"},
	{exitUnavailable, "unavailable", "no server, no daemon, no answer in time, or a port in use: try again later"},
	{exitNotFound, "not found", "the run, question, hand-off, file or fleet is not there, or no longer"},
	{exitConflict, "conflict", "it exists, has ended, is quarantined, taken or another's; call is not in doubt"},
	{exitDamaged, "damaged", "input or stored data is broken or incomplete; what could be done was done"},
	{exitRefused, "refused", "wrong credentials, or no permission"},
	{exitFull, "full", "the fleet's quota or the disk is full; nothing was lost"},
	{exitDiffers, "differs", "two runs differ, a replay came out otherwise, or an executor breaks a rule"},
	{exitInterrupted, "interrupted", "ended by Ctrl-C before it was done"},
}

// failure is an error with the exit code and the hint that a user gets.
type failure struct {
	code exitCode
	what string
	hint string
	// own: the hint is this program's own text from end to end, and its commands lack the flags that name the server.
	own bool
	err error
}

// Error is what went wrong, without the hint.
func (f *failure) Error() string { return f.what }

// Unwrap returns the cause.
func (f *failure) Unwrap() error { return f.err }

// fail builds a failure without a cause.
func fail(code exitCode, hint, format string, args ...any) error {
	return &failure{code: code, what: fmt.Sprintf(format, args...), hint: hint}
}

// failureReport is a failure for programs.
type failureReport struct {
	Error string   `json:"error"`
	Hint  string   `json:"hint,omitzero"`
	Code  exitCode `json:"code"`
	// Name of the exit code.
	Name string `json:"name"`
}

// reported is what a user gets of an error; nil when there is nothing to report.
func reported(ctx context.Context, err error, p prompt) *failureReport {
	if err == nil || closedPipe(err) {
		return nil
	}
	f := explain(ctx, err)
	hint := f.advice(p)
	if seedLike.MatchString(f.what) {
		hint = strings.TrimPrefix(hint+"; ", "; ") + "where a secret seed was given, name the file that holds it; make a new one if others could see it"
	}
	r := &failureReport{Error: withoutSeeds(f.what), Hint: withoutSeeds(hint), Code: f.code}
	for _, e := range exitCodes {
		if e.code == f.code {
			r.Name = e.name
		}
	}
	return r
}

// report prints err and its hint, and returns the exit code. Of several errors in one each has a line: those behind the first are
// indented, so that no text from outside begins a line.
func report(ctx context.Context, err error, p prompt, stderr io.Writer) int {
	r := reported(ctx, err, p)
	if r == nil {
		return int(exitOK)
	}
	// There is nowhere to report that standard error is gone.
	for i, l := range strings.Split(r.Error, "\n") {
		begin := "waymark: "
		if i > 0 {
			begin = "  "
		}
		_, _ = fmt.Fprintf(stderr, "%s%s\n", begin, printable(l))
	}
	if r.Hint != "" {
		_, _ = fmt.Fprintf(stderr, "hint: %s\n", printable(r.Hint))
	}
	return int(r.Code)
}

// reportJSON prints err as one JSON object on a line and returns the exit code.
func reportJSON(ctx context.Context, err error, p prompt, stderr io.Writer) int {
	r := reported(ctx, err, p)
	if r == nil {
		return int(exitOK)
	}
	_ = line(stderr, r) // there is nowhere to report that standard error is gone
	return int(r.Code)
}

// seedLike finds the seeds of NKeys, also mistyped or cut off. No public key begins with an S.
var seedLike = regexp.MustCompile(`\bS[A-Z2-7]{24,}`)

// withoutSeeds takes seeds out of a message: one given in place of a public key, a path or an argument would be quoted in it.
func withoutSeeds(text string) string {
	return seedLike.ReplaceAllString(text, "(a secret seed, not printed)")
}

// advice is the hint, its commands as they are typed.
func (f *failure) advice(p prompt) string {
	if f.own {
		return p.fill(f.hint)
	}
	return f.hint
}

// explain finds exit code and hint of an error. What a command knows better it has put into a failure.
func explain(ctx context.Context, err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if e, ok := errors.AsType[*permissions.Error](err); ok {
		return &failure{code: exitRefused, what: e.What(), hint: deniedHint(e), err: err}
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		return &failure{code: exitInterrupted, what: "interrupted", err: err}
	}
	for _, explain := range []func(error) *failure{
		explainBackup, explainArchive, explainServer, explainConnection, explainService, explainTranscript, explainPublisher, explainStorage, explainInput, explainFile,
	} {
		if f := explain(err); f != nil {
			f.err = err
			if f.what == "" {
				f.what = err.Error()
			}
			return f
		}
	}
	return &failure{code: exitFailure, what: err.Error(), err: err}
}

// explainFile words files that a command could not read or write, and did not explain itself.
func explainFile(err error) *failure {
	var path *fs.PathError
	switch {
	case !errors.As(err, &path):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return &failure{code: exitNotFound, hint: "check the path: the file, or its directory, is not there"}
	case errors.Is(err, fs.ErrPermission):
		return &failure{code: exitFailure, hint: "check the rights of this user on the file and its directory"}
	default:
		return &failure{code: exitFailure, hint: "check the path, what it names and the room on its disk"}
	}
}

const (
	hintServe         = "start one with: waymark serve"
	hintStateDir      = "set another directory with --state-dir or WAYMARK_STATE_DIR"
	hintCredentials   = "check --creds, --user, --nkey or --token and their NATS_ variables; the local server of this machine (waymark serve) needs none: leave out its address"
	hintFleetRelieved = "room is being made and others take it: try again later, or start the daemon with a larger waymark serve --quota SIZE"
	hintFleetFull     = "raise the quota: start the daemon with waymark serve --quota SIZE"
)

func explainServer(err error) *failure {
	var down *statedir.NotRunningError
	var locked *natsd.LockedError
	var full *natsd.DiskFullError
	switch {
	case errors.As(err, &locked):
		holder := "another process"
		if locked.PID != 0 {
			holder = fmt.Sprintf("process %d", locked.PID)
		}
		return &failure{
			code: exitConflict,
			what: fmt.Sprintf("state directory %s is in use by %s", locked.Dir, holder),
			hint: "stop that process, or " + hintStateDir,
		}
	case errors.As(err, &down):
		return &failure{
			code: exitUnavailable,
			what: fmt.Sprintf("no waymark server is running in %s: %s", down.Dir, down.Reason),
			hint: hintServe + ", or name another server with --nats or --context",
			own:  true,
		}
	case errors.Is(err, natsd.ErrPortInUse):
		what, _, _ := strings.Cut(err.Error(), ": stop what listens there")
		return &failure{code: exitUnavailable, what: what, hint: "stop what listens there, or choose another port: waymark serve --port 0 takes a free one", own: true}
	case errors.As(err, &full):
		return &failure{code: exitUnavailable, hint: makeRoom(full.Dir, full.Total)}
	case errors.Is(err, statedir.ErrUnusable):
		return &failure{code: exitFailure, hint: hintStateDir}
	case errors.Is(err, natsd.ErrInvalidConfig):
		return &failure{code: exitUsage, hint: "see: waymark serve --help"}
	}
	return nil
}

func explainConnection(err error) *failure {
	switch {
	case errors.Is(err, natsconn.ErrSettings), errors.Is(err, natsconn.ErrUnknownContext):
		return &failure{code: exitUsage, hint: "see: waymark help, section Which server"}
	case errors.Is(err, natsconn.ErrNoServer):
		return &failure{code: exitUnavailable, hint: hintServe, own: true}
	case errors.Is(err, natsconn.ErrRefused), errors.Is(err, nats.ErrPermissionViolation), errors.Is(err, nats.ErrAuthorization):
		return &failure{code: exitRefused, hint: hintCredentials}
	case errors.Is(err, nats.ErrConnectionClosed):
		return &failure{code: exitUnavailable, hint: "the server ended the connection for good, as it does when the key was taken out of its configuration: " +
			"start the daemon again, with a key that the server and the fleet know: waymark fleet keys", own: true}
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return &failure{code: exitUnavailable, hint: "name the file with the CA certificates that the server's certificate is signed by: --tls-ca FILE, or NATS_CA in the environment"}
	case errors.As(err, new(x509.HostnameError)):
		return &failure{code: exitUnavailable, hint: "use a name or an address that the server's certificate has, with --nats"}
	case errors.Is(err, natsconn.ErrUnreachable):
		return &failure{code: exitUnavailable, hint: "check the address and that the server runs; a local one: waymark serve"}
	}
	return nil
}

// deniedHint names the roles that may do what the server does not permit.
func deniedHint(e *permissions.Error) string {
	var roles []string
	if e.Publish {
		for _, role := range access.MayPublish(e.Subject) {
			roles = append(roles, string(role))
		}
	}
	if len(roles) == 0 {
		return e.Hint()
	}
	return "use the credentials of the fleet and of a role that may: " + strings.Join(roles, ", ") +
		" (waymark fleet add wrote a NATS context for each); docs/security.md says which role may what"
}

// explainService words what the daemon answered.
func explainService(err error) *failure {
	var service *schema.ServiceError
	if !errors.As(err, &service) {
		return nil
	}
	f := &failure{what: service.Message, hint: service.Hint}
	switch service.Code {
	case schema.CodeBadRequest, schema.CodeTooLarge, schema.CodeInvalidAnswer:
		f.code = exitUsage
	case schema.CodeForbidden:
		f.code = exitRefused
	case schema.CodeNotFound, schema.CodeUnknownFleet, schema.CodeUnknownInterrupt, schema.CodeUnknownHandoff,
		schema.CodePointNotFound, schema.CodePointPurged, schema.CodeErased:
		f.code = exitNotFound
	case schema.CodeConflict, schema.CodeRunEnded, schema.CodeWrongAgent, schema.CodeNotInDoubt, schema.CodeHandoffTaken, schema.CodeQuarantined,
		schema.CodePointAmbiguous, schema.CodeNeeded:
		f.code = exitConflict
	case schema.CodeOverloaded, schema.CodeUnavailable:
		f.code = exitUnavailable
	case schema.CodeDamaged:
		f.code = exitDamaged
	case schema.CodeStorageFull:
		f.code = exitFull
	default:
		f.code = exitFailure
	}
	// The daemon's hints speak of requests; at a prompt the next step is a command.
	switch service.Code {
	case schema.CodeUnavailable:
		f.hint, f.own = "try again; if it stays so, see what is wrong: waymark doctor", true
	case schema.CodeNotFound:
		f.hint, f.own = "list the runs with: waymark runs ls", true
	case schema.CodeRunEnded:
		f.hint, f.own = "see how it ended: waymark runs get RUN; to go on with it all the same: waymark recover RUN --executor NAME --reason reopen", true
	default:
	}
	return f
}

// explainInput words names outside the grammar and broken stored data.
func explainInput(err error) *failure {
	var name *schema.NameError
	switch {
	case errors.As(err, &name):
		return &failure{code: exitUsage, what: name.Error(), hint: "ids look like: fix-login-2026-01-31", err: err}
	case errors.Is(err, schema.ErrCorrupt), errors.Is(err, schema.ErrFormat):
		return &failure{code: exitDamaged}
	}
	return nil
}
