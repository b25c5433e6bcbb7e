// Package inspector serves web pages about a fleet: its runs, the things that need a person, the history of a run, and
// the effects of a takeover.
//
// # What it owns
//
// [Inspector], an http.Handler over a [Fleet]; the templates, style and script of the pages; the login by a token that
// becomes a cookie. The pages show what the commands show, in the words of internal/look/story and internal/look/inbox.
//
// # What it promises
//
//   - Content is hostile text. Templates escape it, control characters and direction overrides are visible marks, and
//     the pages' policy lets the browser run only the script of this package.
//   - Each page works without script. With it, changes come as HTML over one event stream, from the same templates.
//   - The process has one subscription, whatever the number of viewers. Bursts are coalesced.
//   - Numbers are shown as recorded. Encrypted content is shown as encrypted.
//   - It has no rights of its own: the server decides what the viewer's credentials may do.
//
// # On failure
//
// A page says what failed and what to do. An open page says so at its top, and continues after the failure.
package inspector
