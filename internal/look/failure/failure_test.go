package failure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestExitCode_EveryFailure_HasOne(t *testing.T) {
	t.Parallel()
	tests := []struct {
		err  error
		code Code
		hint string
	}{
		{io.ErrUnexpectedEOF, General, ""},
		{fmt.Errorf("x: %w", natsconn.ErrNoServer), Unavailable, "waymark serve"},
		{fmt.Errorf("x: %w", natsconn.ErrRefused), Refused, "--creds"},
		{fmt.Errorf("x: %w", natsconn.ErrSettings), Usage, "waymark --help"},
		{schema.CheckName("run id", "a b"), Usage, "ids look like"},
		{&schema.ServiceError{Code: schema.CodeNotFound, Message: "no"}, NotFound, "waymark runs ls"},
		{&schema.ServiceError{Code: schema.CodeDamaged, Hint: "restore"}, Damaged, "restore"},
		{&schema.ServiceError{Code: schema.CodeStorageFull}, Full, ""},
		{&schema.ServiceError{Code: schema.CodeOverloaded}, Unavailable, ""},
		{&schema.ServiceError{Code: schema.CodeInternal}, General, ""},
		{&schema.ServiceError{Code: schema.CodeUnknownInterrupt}, NotFound, ""},
		{&schema.ServiceError{Code: schema.CodeInvalidAnswer}, Usage, ""},
		{&schema.ServiceError{Code: schema.CodeUnknownHandoff}, NotFound, ""},
		{&schema.ServiceError{Code: schema.CodeHandoffTaken}, Conflict, ""},
		{&schema.ServiceError{Code: schema.CodeTooManySignals, Hint: "wait"}, Unavailable, "later"},
		{&schema.ServiceError{Code: schema.CodeQuarantined, Hint: "waymark release r"}, Conflict, "waymark release RUN"},
		{fmt.Errorf("x: %w", publisher.ErrUnknownInterrupt), NotFound, "waymark input"},
		{fmt.Errorf("x: %w", publisher.ErrInvalidAnswer), Usage, "waymark input"},
		{fmt.Errorf("x: %w", publisher.ErrUnknownHandoff), NotFound, "waymark runs get"},
		{fmt.Errorf("x: %w", publisher.ErrHandoffTaken), Conflict, "waymark runs get"},
		{fmt.Errorf("x: %w", publisher.ErrQuarantined), Conflict, "waymark release"},
		{&publisher.FullError{Fleet: "f", Quota: 10, Used: 10}, Full, "--quota"},
		{fmt.Errorf("x: %w", publisher.ErrFenced), Conflict, "runs get"},
		{fmt.Errorf("x: %w", publisher.ErrIncomplete), Damaged, "runs get"},
		{fmt.Errorf("x: %w", publisher.ErrNoService), Unavailable, "waymark serve"},
		{fmt.Errorf("x: %w", kvstore.ErrStreamMissing), Damaged, "backup"},
		{fmt.Errorf("x: %w", &fs.PathError{Op: "open", Path: "f", Err: fs.ErrNotExist}), NotFound, "the file or its directory does not exist"},
		{fmt.Errorf("x: %w", &fs.PathError{Op: "open", Path: "f", Err: fs.ErrPermission}), General, "permissions"},
		{fmt.Errorf("x: %w", &fs.PathError{Op: "open", Path: "f", Err: fs.ErrInvalid}), General, "check the path"},
		{&kvstore.ConfigError{Stream: "S", Command: "nats stream edit S"}, Conflict, "nats stream edit S"},
	}
	for _, test := range tests {
		f := Explain(t.Context(), test.err)
		require.Equal(t, test.code, f.Code, "%v", test.err)
		require.Contains(t, f.Hint, test.hint, "%v", test.err)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupt signal received"))
	require.Equal(t, Interrupted, Explain(ctx, fmt.Errorf("reading: %w", context.Canceled)).Code)
	require.Equal(t, Interrupted, Explain(ctx, fmt.Errorf("reading: %w", context.Cause(ctx))).Code)
	require.Equal(t, General, Explain(ctx, io.ErrUnexpectedEOF).Code, "a failure stays one")
}

func TestExitCode_Table_EachOnce(t *testing.T) {
	t.Parallel()
	seen := map[Code]bool{}
	for _, e := range Codes {
		require.False(t, seen[e.Code])
		require.NotEmpty(t, e.Meaning)
		seen[e.Code] = true
	}
	for _, list := range [][]sentinel{publisherErrors, storageErrors} {
		for _, s := range list {
			require.True(t, seen[s.code], "%v", s.err)
		}
	}
}

func TestPrint_Failure_TwoLinesUnlessReaderClosed(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.Equal(t, 2, Report(t.Context(), New(Usage, "do that", "wrong\nthing"), prompt.Prompt{}, &b))
	require.Equal(t, "waymark: wrong\n  thing\nhint: do that\n", b.String())
	b.Reset()
	require.Zero(t, Report(t.Context(), fmt.Errorf("writing: %w", io.ErrClosedPipe), prompt.Prompt{}, &b))
	require.Zero(t, Report(t.Context(), nil, prompt.Prompt{}, &b))
	require.Empty(t, b.String())
}

func TestHint_ForeignText_NotSearchedForCommands(t *testing.T) {
	t.Parallel()
	p := prompt.Prompt{Flags: "--nats a "}
	require.Equal(t, "list the runs with: waymark --nats a runs ls", (&Error{Hint: "list the runs with: waymark runs ls", Own: true}).Advice(p))
	require.Equal(t, "see: waymark serve --help", (&Error{Hint: "see: waymark serve --help", Own: true}).Advice(p))
	require.Equal(t, "it waits for: 'waymark runs ls'", (&Error{Hint: "it waits for: 'waymark runs ls'"}).Advice(p))
	for _, list := range [][]sentinel{publisherErrors, storageErrors} {
		for _, s := range list {
			f := Explain(t.Context(), s.err)
			if strings.HasSuffix(f.Hint, " --help") {
				continue
			}
			require.NotContains(t, strings.ReplaceAll(f.Advice(p), "waymark --nats a ", ""), "waymark ", "%v", s.err)
		}
	}
}
