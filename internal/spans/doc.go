// Package spans makes OpenTelemetry spans of a run's events and exports them.
//
// It owns the mapping and the way of the spans to a collector:
//
//   - [Tracker] turns the events of one run, in the order of its log, into spans. It is pure: the same events give the same
//     spans with the same ids, on every machine and at every time. Events that the fold rejects give none.
//   - [Feed] reads a fleet's log from a position and keeps a tracker for each run that is at work.
//   - [Exporter] sends spans by OTLP until the collector has taken them.
//   - [Positions] keeps on disk up to where everything was exported.
//
// A run is a trace, and its trace id is the hash of fleet and run. Every epoch is a span invoke_agent: the first is the
// trace's root, each later one is the root's child and linked to the epoch it took over from. Below an epoch are its phases and
// its turns, below a turn the model's call (chat) and the tools' calls (execute_tool). A call that was open when the epoch
// changed ends there, as in doubt; run again it is a new span that is linked to the first. A run that another run started is a
// trace of its own, linked to the call that started it. Names follow the GenAI semantic conventions; what Waymark adds begins
// with waymark. What people or models wrote is left out unless it is asked for ([Options.Content]).
//
// A span is exported when it has ended; nothing is sent twice to complete it.
//
// What it promises: a position is stored only after everything before it was taken by the collector, so a restart loses
// nothing. What was taken and whose position was not stored is sent once more with the same ids. A collector that is away is
// waited for; meanwhile nothing is read. Events that left the log for segments before they were read are read from there, by
// way of the daemon.
//
// On failure: a batch that the collector calls invalid is divided until the span that it means is found, which is dropped, counted
// and said. Every other failure is tried again.
package spans
