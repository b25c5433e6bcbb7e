package bench

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// Goal names a line of the design's table of what is to be reached.
type Goal string

// Lines of the design's table.
const (
	GoalBoundary            Goal = "boundary"
	GoalMany64              Goal = "boundaries-64"
	GoalMany256             Goal = "boundaries-256"
	GoalLag                 Goal = "lag"
	GoalFoldAlone           Goal = "fold-alone"
	GoalFoldWhilePublishing Goal = "fold-while-publishing"
	GoalFoldRefused         Goal = "fold-refused"
	GoalStoredFull          Goal = "stored-full"
	GoalStoredPaced         Goal = "stored-paced"
	GoalFlat                Goal = "stored-flat"
	GoalTurnStored          Goal = "turn-stored"
	GoalSmallStored         Goal = "turn-stored-small"
	GoalTurnCPU             Goal = "turn-cpu"
	GoalTurnAdded           Goal = "turn-added"
	GoalKept                Goal = "kept"
	GoalHead                Goal = "head"
	GoalEvents              Goal = "events"
	GoalFirstEvent          Goal = "first-event"
	GoalIdleMemory          Goal = "memory-idle"
	GoalLoadedMemory        Goal = "memory-million"
	GoalReady               Goal = "ready-million"
	GoalTakeover            Goal = "takeover"
)

// goalLine is how a goal stands in the table.
type goalLine struct {
	goal Goal
	what string
	// reach is what is to be reached, unit included.
	reach string
	// unit of the figures, and by what they are divided to be told in it.
	unit string
	by   float64
}

// goalLines are all of them, in the design's order.
var goalLines = []goalLine{
	{GoalBoundary, "durable boundary, sync always, one run, p50", "at most 1.15 × a raw publish", "us", 1},
	{GoalMany64, "durable boundaries a second, sync always, 64 runs in one process", "at least 2 × raw single publishes", "/s", 1},
	{GoalMany256, "the same, 256 runs", "at least 5 × raw single publishes", "/s", 1},
	{GoalLag, "accepted to checkpointed, p99, below saturation", "at most 50 ms", "ms", 1000},
	{GoalFoldAlone, "fold, default sync, catching up alone", "at least 0.5 × raw async publishes", "/s", 1},
	{GoalFoldWhilePublishing, "fold, default sync, while async publishers write", "at least 0.3 × raw async publishes", "/s", 1},
	{GoalFoldRefused, "fold, sync always, catching up alone, refused events", "at most 2 times slower than accepted ones", "/s", 1},
	{GoalStoredFull, "bytes stored per payload byte, executors at full speed", "at most 2.0", "", 1},
	{GoalStoredPaced, "the same, every boundary with a checkpoint of its own", "at most 3.0", "", 1},
	{GoalFlat, "the same, 1,000 turns by 50", "at most 1.05", "", 1},
	{GoalTurnStored, "bytes stored per payload byte, turns with two pure tools", "at most 1.6", "", 1},
	{GoalSmallStored, "the same, small steps: a call of 50 B and a result of 50 B", "at most 15", "", 1},
	{GoalTurnCPU, "CPU of a turn, all processes", "at most 600 us", "us", 1},
	{GoalTurnAdded, "added to a turn whose model takes 200 ms and whose two tools 20 ms each, p50", "at most 0.6 ms", "ms", 1000},
	{GoalKept, "bytes kept per payload byte after sealing and purge (text)", "at most 0.5", "", 1},
	{GoalHead, "recovery, view head, p50", "at most 3 ms (R1), flat", "ms", 1000},
	{GoalEvents, "recovery, view events, payload", "at least 100 MB/s", "MB/s", 1},
	{GoalFirstEvent, "recovery, view events, first event, p50", "at most 5 ms", "ms", 1000},
	{GoalIdleMemory, "daemon memory, idle", "at most 64 MiB", "MiB", 1 << 20},
	{GoalLoadedMemory, "daemon memory, 1,000,000 runs stored, 10,000 live", "at most 256 MiB", "MiB", 1 << 20},
	{GoalReady, "start to ready, 1,000,000 runs stored, beyond the server's own start", "at most 2 s", "s", 1},
	{GoalTakeover, "a dead executor's run running elsewhere, one fault", "p50 15 s, p99 25 s", "s", 1},
}

// setting is a column group of the table: where it was measured, and the results of that.
type setting struct {
	name    string
	results []Result
}

// settings of the results, R1 before R3. Lines that failed or mean nothing are in none.
func settings(results []Result) []setting {
	var list []setting
	for _, server := range []ServerKind{Embedded, OwnProcess, ThreeNodes} {
		s := setting{name: fmt.Sprintf("%s (%s)", replicasOf(server), server)}
		for _, r := range results {
			if r.Server == server && r.Error == "" && !r.Quick {
				s.results = append(s.results, r)
			}
		}
		if len(s.results) > 0 {
			list = append(list, s)
		}
	}
	return list
}

// aims are those of a goal, in the order of the results.
func (s *setting) aims(goal Goal) []Aim {
	var list []Aim
	for _, r := range s.results {
		for _, a := range r.Aims {
			if a.Goal == goal {
				list = append(list, a)
			}
		}
	}
	return list
}

// goals writes the design's table: a line each, with what each setting reached. A line without a measurement says so.
func goals(b *bytes.Buffer, results []Result) {
	all := settings(results)
	if len(all) == 0 {
		return
	}
	header := []string{"what", "to reach"}
	for _, s := range all {
		header = append(header, s.name, "raw", "by raw", "")
	}
	var rows [][]string
	for _, g := range goalLines {
		row := []string{g.what, g.reach}
		var at []string
		for _, s := range all {
			aims := s.aims(g.goal)
			row = append(row, g.cells(aims)...)
			for _, a := range aims {
				if a.At != "" && !slices.Contains(at, a.At) {
					at = append(at, a.At)
				}
			}
		}
		if len(at) > 0 {
			row[0] += " (" + strings.Join(at, " / ") + ")"
		}
		rows = append(rows, row)
	}
	b.WriteString("## What is reached\n\n")
	b.WriteString("Several figures in one cell are those of the several sizes that the line names, in that order.\n\n")
	markdown(b, header, rows)
}

// cells are what one setting measured of a goal: ours, raw, the ratio and the verdict.
func (g *goalLine) cells(aims []Aim) []string {
	if len(aims) == 0 {
		return []string{"", "", "", "not measured"}
	}
	var ours, raw, ratios []string
	missed := 0
	for _, a := range aims {
		if !a.Reached {
			missed++
		}
		value := a.Value / g.by
		if a.Ours == nil || a.Raw == nil {
			ours = append(ours, number(&value))
			continue
		}
		o, r := *a.Ours/g.by, *a.Raw/g.by
		ours, raw, ratios = append(ours, number(&o)), append(raw, number(&r)), append(ratios, number(&a.Value))
	}
	verdict := "reached"
	switch {
	case missed == len(aims):
		verdict = "**not reached**"
	case missed > 0:
		verdict = fmt.Sprintf("**not reached** in %d of %d", missed, len(aims))
	}
	return []string{g.withUnit(ours), g.withUnit(raw), strings.Join(ratios, " / "), verdict}
}

func (g *goalLine) withUnit(figures []string) string {
	if len(figures) == 0 {
		return ""
	}
	text := strings.Join(figures, " / ")
	switch {
	case g.unit == "" || strings.HasPrefix(g.unit, "/"):
		return text + g.unit
	}
	return text + " " + g.unit
}

// replicasOf the streams, by the kind of server.
func replicasOf(server ServerKind) string {
	if server == ThreeNodes {
		return "R3"
	}
	return "R1"
}
