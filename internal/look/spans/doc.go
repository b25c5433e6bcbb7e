// Package spans converts a run's events to OpenTelemetry spans and exports them.
//
// It owns the mapping, and the delivery of spans to a collector:
//
//   - [Tracker] converts the events of one run, in log order, to spans. It is pure: the same events give the same spans
//     with the same ids, on every machine and at any time. Events that the fold rejects give no spans.
//   - [Feed] reads a fleet's log from a position and keeps a tracker for each active run.
//   - [Exporter] sends spans by OTLP until the collector has accepted them.
//   - [Positions] stores on disk how far the log was exported.
//
// A run is a trace, and its trace id is the hash of fleet and run. Every epoch is a span invoke_agent: the first is the
// trace's root, each later one is the root's child and linked to the epoch it took over from. Below an epoch are its phases and
// its turns, below a turn the model's call (chat) and the tools' calls (execute_tool). A call that was open when the epoch
// changed ends there, as in doubt; if it runs again, the new span is linked to the first. A run started by another run
// is a trace of its own, linked to the call that started it. Names follow the GenAI semantic conventions; Waymark's own
// names begin with waymark. Content of people and models is omitted unless [Options.Content] is set.
//
// A span is exported when it has ended; nothing is sent twice to complete it.
//
// Promises: a position is stored only after the collector has accepted everything before it, so a restart loses
// nothing. Spans whose position was not stored are sent again with the same ids. While the collector is unavailable the
// feed waits and reads nothing. Events that were moved to segments before they were read are read from the daemon.
//
// On failure: a batch that the collector calls invalid is divided until the invalid span is found. It is dropped,
// counted and logged. Every other failure is retried.
package spans
