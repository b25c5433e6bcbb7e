package main

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/waymarkio/waymark/internal/denied"
)

// app is what every command is given besides its own flags: the world outside, and the global flags.
type app struct {
	cli    *cli
	getenv func(string) string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	// now is the clock of everything that prints or compares times.
	now func() time.Time
	// prompt writes the commands that are shown.
	prompt prompt
	// refuse ends the command because the server does not permit what it does.
	refuse context.CancelCauseFunc
	// parser is the grammar itself, for help.
	parser *kong.Kong
}

// errHelp says that help was printed and there is nothing left to do.
var errHelp = errors.New("help was shown")

// run parses args, runs the command and prints its failure. It returns the exit code.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	a := &app{getenv: getenv, stdin: stdin, stdout: stdout, stderr: stderr, now: time.Now, refuse: refuse}
	err := a.main(ctx, args)
	if refused, ok := errors.AsType[*denied.Error](context.Cause(ctx)); ok && !errors.As(err, new(*denied.Error)) {
		err = refused // whatever came of it
	}
	return report(ctx, err, a.prompt, stderr)
}

func (a *app) main(ctx context.Context, args []string) error {
	a.cli = new(cli)
	parser, err := newParser(a.cli, a.getenv, a.stdout, a.stderr)
	if err != nil {
		return err
	}
	a.parser = parser
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if errors.Is(err, errHelp) {
		return nil
	}
	if err != nil {
		return usageError(err)
	}
	a.prompt = promptOf(a.cli, a.getenv)
	parsed.BindTo(ctx, (*context.Context)(nil))
	return parsed.Run(a)
}

// newParser builds the grammar. It reads nothing but what it is given, so that tests can have several.
func newParser(c *cli, getenv func(string) string, stdout, stderr io.Writer) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("waymark"),
		kong.Description("Waymark keeps fleets of AI agents recoverable."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) {}),
		kong.NoDefaultHelp(),
		kong.Help(printHelp),
		kong.Resolvers(environment(getenv)),
		kong.TypeMapper(reflect.TypeFor[byteSize](), kong.MapperFunc(decodeByteSize)),
		kong.TypeMapper(reflect.TypeFor[quotaSize](), kong.MapperFunc(decodeQuotaSize)),
		kong.ExplicitGroups([]kong.Group{
			{Key: "server", Title: "Which server:"},
			{Key: "output", Title: "Output:"},
		}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: false, WrapUpperBound: 100}),
		kong.Vars{"http": defaultHTTP},
	)
}

// environment resolves flags from the variable named in their tag environ.
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

// usageError words kong's errors as ours, with the help that fits.
func usageError(err error) error {
	var command strings.Builder
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context != nil {
		for _, p := range parse.Context.Path {
			if p.Command != nil {
				command.WriteString(p.Command.Name + " ")
			}
		}
	}
	return &failure{
		code: exitUsage,
		what: strings.TrimSpace(err.Error()),
		hint: "see: waymark " + command.String() + "--help",
		err:  err,
	}
}
