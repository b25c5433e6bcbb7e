package cli

import (
	"context"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/serve"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/schema"
)

// errHelp says that help was printed and the command is done.
var errHelp = errors.New("help was shown")

// Run parses args, runs the command and prints its failure. It returns the exit code.
func Run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	a := &base.App{Getenv: getenv, Stdin: stdin, Stdout: stdout, Stderr: stderr, Now: time.Now, Refuse: refuse}
	err := dispatch(ctx, a, args)
	switch cause := context.Cause(ctx); {
	case errors.As(cause, new(*access.Refusal)) && !errors.As(err, new(*access.Refusal)), errors.Is(cause, natsconn.ErrRefused):
		err = cause // whatever its result
	}
	if a.JSON || asksJSON(args) {
		return failure.ReportJSON(ctx, err, a.Prompt, stderr)
	}
	return failure.Report(ctx, err, a.Prompt, stderr)
}

// asksJSON reports whether a command line has --json, even if parsing stopped before it.
func asksJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}

// dispatch runs the command of a command line.
func dispatch(ctx context.Context, a *base.App, args []string) error {
	grammar := new(cli)
	a.Flags = &grammar.Flags
	parser, err := newParser(grammar, a.Getenv, a.Stdout, a.Stderr)
	if err != nil {
		return err
	}
	a.Stdout = output.NewPage(a.Stdout, a.Getenv)
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "help":
		args = append(slices.Clone(args[1:]), "--help")
	}
	parsed, err := parser.Parse(args)
	if errors.Is(err, errHelp) {
		return nil
	}
	if err != nil {
		return usageError(err)
	}
	if err := emptyFlag(parsed); err != nil {
		return err
	}
	a.Prompt = base.PromptOf(a.Flags, a.Getenv)
	if run := runOf(parsed); schema.ValidName(run) {
		a.Prompt.Run = run
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	if err := parsed.BindToProvider(func() (*base.Client, error) { return a.Connect(ctx) }); err != nil {
		return err
	}
	defer a.Close()
	return parsed.Run(a)
}

// runOf is the run that a command line names; empty if it names none or several.
func runOf(parsed *kong.Context) string {
	for _, p := range parsed.Path {
		if p.Positional == nil || p.Positional.Name != "run" {
			continue
		}
		switch target := p.Positional.Target; {
		case target.Kind() == reflect.String:
			return target.String()
		case target.Len() == 1:
			return target.Index(0).String()
		}
	}
	return ""
}

// newParser builds the grammar. It depends only on its arguments, so tests can have several.
func newParser(c *cli, getenv func(string) string, stdout, stderr io.Writer) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("waymark"),
		kong.Description("Waymark keeps fleets of AI agents recoverable."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) {}),
		kong.NoDefaultHelp(),
		kong.Help(func(options kong.HelpOptions, ctx *kong.Context) error { return printHelp(options, ctx, getenv) }),
		kong.Resolvers(environment(getenv)),
		kong.PostBuild(checkRunIDs),
		kong.TypeMapper(reflect.TypeFor[base.ByteSize](), kong.MapperFunc(base.DecodeByteSize)),
		kong.TypeMapper(reflect.TypeFor[base.QuotaSize](), kong.MapperFunc(base.DecodeQuotaSize)),
		kong.ExplicitGroups([]kong.Group{
			{Key: "server", Title: "Which server:"},
			{Key: "output", Title: "Output:"},
		}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: false, WrapUpperBound: 100}),
		kong.Vars{"http": serve.DefaultHTTP},
	)
}

// environment reads flags from the variable in their tag environ.
func environment(getenv func(string) string) kong.Resolver {
	return kong.ResolverFunc(func(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
		name := flag.Tag.Get("environ")
		if name == "" {
			return nil, nil
		}
		value := getenv(name)
		if value == "" {
			return nil, nil
		}
		return value, nil
	})
}

// checkRunIDs makes the grammar refuse invalid run ids wherever a command takes one: in an argument named run, or a
// flag with the placeholder RUN. An empty id, such as from an unset variable of a script, must not mean all runs.
func checkRunIDs(k *kong.Kong) error {
	return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
		switch v := node.(type) {
		case *kong.Flag:
			if v.PlaceHolder == "RUN" {
				v.Mapper = runID{v.Mapper}
			}
		case *kong.Value:
			if v.Name == "run" {
				v.Mapper = runID{v.Mapper}
			}
		}
		return next(nil)
	})
}

// runID checks the value of another mapper: a run id, or a list of them.
type runID struct{ kong.Mapper }

// Decode is called by kong.
func (m runID) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	if err := m.Mapper.Decode(ctx, target); err != nil {
		return err
	}
	if target.Kind() != reflect.Slice {
		return schema.CheckName("run id", target.String())
	}
	for i := range target.Len() {
		if err := schema.CheckName("run id", target.Index(i).String()); err != nil {
			return err
		}
	}
	return nil
}

// emptyFlag refuses a flag with an empty value on the command line. Otherwise the flag would count as not given, and
// the command would use another server, or list everything.
func emptyFlag(parsed *kong.Context) error {
	for _, p := range parsed.Path {
		if p.Flag == nil || p.Resolved {
			continue
		}
		value := reflect.ValueOf(parsed.FlagValue(p.Flag))
		switch value.Kind() {
		case reflect.String, reflect.Slice, reflect.Map:
			if value.Len() == 0 {
				return failure.New(failure.Usage, "give it a value, or omit the flag", "--%s has an empty value", p.Flag.Name)
			}
		default:
		}
	}
	return nil
}

// usageError rewords kong's errors, with the matching help.
func usageError(err error) error {
	if errors.As(err, new(*schema.NameError)) {
		return err // already explained
	}
	if f, ok := errors.AsType[*failure.Error](err); ok {
		return &failure.Error{Code: f.Code, What: strings.TrimSpace(err.Error()), Hint: f.Hint, Err: err}
	}
	var command strings.Builder
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		for _, p := range parse.Context.Path {
			if p.Command != nil {
				command.WriteString(p.Command.Name + " ")
			}
		}
	}
	return &failure.Error{
		Code: failure.Usage,
		What: strings.TrimSpace(err.Error()),
		Hint: "see: waymark " + command.String() + "--help",
		Err:  err,
	}
}
