// Package walks reads docs/walks.md, which names the functions that one event and one request pass, and holds it against the source. It
// serves internal/lint, which fails for a function that is not there, and tools/structure, which counts.
package walks
