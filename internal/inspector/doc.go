// Package inspector shows a fleet to people as web pages: its runs, what needs a person, what a run did, what a takeover would do.
//
// # What it owns
//
// [Inspector], an http.Handler over a [Fleet]; the pages' templates, style and script; who may enter, by a token that becomes a cookie. It
// shows what the commands show, in their words: those are in internal/story and internal/inbox.
//
// # What it promises
//
//   - What is shown is hostile text. Templates escape it by its place, control characters and direction overrides are visible marks, and
//     the pages' policy lets the browser run nothing but the one script of this package.
//   - Each page works without script. With it, the parts that change come as HTML over one event stream, made by the same templates.
//   - The process has one subscription, whatever the number of viewers. Bursts are coalesced.
//   - Numbers are shown as recorded. Encrypted content is shown as encrypted.
//   - It has no rights of its own: the server decides what the viewer's credentials may do.
//
// # On failure
//
// A page says what failed and what to do. A page that is open says so at its top, and goes on once it can.
package inspector
