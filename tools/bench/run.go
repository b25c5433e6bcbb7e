package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/waymarkio/waymark/tools/bench/internal/bench"
)

// runCmd measures.
type runCmd struct {
	Case       []string `arg:"" optional:"" help:"Cases to measure; see --list. None means all."`
	List       bool     `help:"List the cases and measure nothing."`
	Server     string   `default:"embedded" enum:"embedded,process,cluster" placeholder:"KIND" help:"embedded in this process, process of its own, or cluster of three processes (default: embedded)."`
	Sync       string   `default:"" enum:",always,default" placeholder:"WHEN" help:"When servers write through to the disk: always, or JetStream's default of two minutes (default: always, save in cases about the other)."`
	Rounds     int      `default:"0" placeholder:"N" help:"Rounds of raw and of Waymark, in turns; figures are their medians (default: 5)."`
	Runs       int      `default:"0" placeholder:"R" help:"Runs at once, in place of what the case measures."`
	Turns      int      `default:"0" placeholder:"T" help:"Turns of a run, in place of what the case measures."`
	Shards     int      `default:"0" placeholder:"N" help:"Shards of the fleet, in place of what the case measures (default: as waymark serve makes one: 8 on a lone server that syncs always)."`
	Daemons    int      `default:"0" placeholder:"N" help:"Daemons in processes of their own (default: one within this process)."`
	Executors  int      `default:"0" placeholder:"N" help:"Executor processes that share the runs in case turn, at most one a run (default: all runs in this process)."`
	Out        string   `placeholder:"FILE" help:"Append the results to a file, one line of JSON each."`
	CPUProfile string   `name:"cpuprofile" placeholder:"FILE" help:"Write a CPU profile of this process, in pprof's form."`
	Store      string   `placeholder:"DIR" help:"Where the servers' temporary directories are made: the disk that is measured (default: the system's)."`
	Small      bool     `name:"quick" help:"Only see that each case works, in seconds; the figures mean nothing."`
}

// options returns the options of the measurement.
func (c runCmd) options(a *app) (bench.Options, error) {
	binary, err := os.Executable()
	if err != nil {
		return bench.Options{}, err
	}
	o := bench.Options{
		Server: bench.ServerKind(c.Server), Sync: bench.Sync(c.Sync), Rounds: c.Rounds, Runs: c.Runs, Turns: c.Turns,
		Shards: c.Shards, Daemons: c.Daemons, Executors: c.Executors, Store: c.Store, Quick: c.Small, Logger: newLogger(a.stderr),
		Version: version(),
		Child: func() *exec.Cmd {
			// Not the context of the measurement: its processes are stopped in order, by their standard input.
			cmd := exec.CommandContext(context.Background(), binary, "child")
			cmd.Stderr = a.stderr
			return cmd
		},
	}
	if !a.cli.Quiet {
		o.Progress = func(text string) { _, _ = fmt.Fprintln(a.stderr, "measuring", text) } // as progress bars do
	}
	return o, o.Validate()
}

// Run measures the cases and prints tables of them, or with --json each line as it comes.
func (c runCmd) Run(ctx context.Context, a *app) (err error) {
	cases, err := bench.Find(c.Case...)
	if err != nil {
		return err
	}
	if c.List {
		if len(c.Case) == 0 {
			cases = bench.Cases()
		}
		return listCases(a, cases)
	}
	o, err := c.options(a) //nolint:contextcheck // the processes of a measurement are stopped in order, not by a context
	if err != nil {
		return err
	}
	var outs []io.Writer
	if a.cli.JSON {
		outs = append(outs, a.stdout)
	}
	if c.Out != "" {
		file, err := os.OpenFile(c.Out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // figures are no secret
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		outs = append(outs, file)
	}
	if c.CPUProfile != "" {
		file, err := os.Create(c.CPUProfile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	var results []bench.Result
	err = bench.Run(ctx, cases, o, func(r *bench.Result) error {
		results = append(results, *r)
		_, err := r.WriteTo(io.MultiWriter(outs...))
		return err
	})
	if !a.cli.JSON {
		tables := bench.Tables(results)
		// Whole turns are compared by a report of several systems.
		err = errors.Join(err, printTables(a.stdout, slices.DeleteFunc(tables, func(t bench.Table) bool { return t.Name == "turns" })))
	}
	return err
}

func listCases(a *app, cases []bench.Case) error {
	rows := [][]string{{"CASE", "MEASURES"}}
	for _, c := range cases {
		rows = append(rows, []string{c.Name, c.About})
	}
	return printTable(a.stdout, rows)
}

// reportCmd prints tables of what several measurements wrote, "make bench-page" those of docs/performance.md.
type reportCmd struct {
	File []string `arg:"" help:"Lines that --out and tools/bench/peers wrote."`
	CSV  string   `name:"csv" placeholder:"DIR" help:"Write each table to a file of this directory, too, with the date and the command that measured it."`
}

// Run reads the files and prints the tables.
func (c reportCmd) Run(a *app) error {
	var results []bench.Result
	for _, name := range c.File {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		read, err := bench.ReadResults(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, read...)
	}
	tables := bench.Tables(results)
	if c.CSV != "" {
		for _, t := range tables {
			if err := writeCSV(filepath.Join(c.CSV, t.Name+".csv"), t.Rows); err != nil {
				return err
			}
		}
	}
	return printTables(a.stdout, tables)
}

func printTables(w io.Writer, tables []bench.Table) error {
	for i, t := range tables {
		if i > 0 {
			_, _ = fmt.Fprintln(w) // the table behind it reports the error
		}
		if err := printTable(w, t.Rows); err != nil {
			return err
		}
	}
	return nil
}

// writeCSV writes a table with the day of today and the command of the Makefile.
func writeCSV(name string, rows [][]string) error {
	begin := []string{"date", "command"}
	var text bytes.Buffer
	w := csv.NewWriter(&text)
	for _, row := range rows {
		_ = w.Write(append(slices.Clip(begin), row...)) // a buffer takes all
		begin = []string{time.Now().Format(time.DateOnly), "make bench-page"}
	}
	w.Flush()
	return os.WriteFile(name, text.Bytes(), 0o644) //nolint:gosec // figures are no secret
}

// childCmd is a process of a measurement: a server, a daemon or an executor.
type childCmd struct{}

// Run serves in the role that its standard input names, until that input ends.
func (childCmd) Run(ctx context.Context, a *app) error {
	// Ctrl-C reaches every process of a terminal; this one ends when the measurement has closed its input.
	return bench.Child(context.WithoutCancel(ctx), a.stdin, a.stdout, newLogger(a.stderr))
}
