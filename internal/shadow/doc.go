// Package shadow folds some of a fleet's runs a second time, beside the folder and by the naive model, and says where the
// two do not agree.
//
// # What it owns
//
// The choice of runs ([Config]: a share of them, at most so many at once, at most so many events a second), their models, and
// what was found ([Stats], [Shadow.Last]). It is switched on by waymark serve --shadow-fold.
//
// # What it promises
//
//   - It never disturbs the fold: [Shadow.Folded] copies the head of a chosen run, hands it over if there is room, and returns. It
//     does no I/O, waits for nothing, and what goes wrong in the shadow is counted and logged there.
//   - Memory is bounded by runs, events of each, and bytes under way. What passes a bound is let go and counted, never compared
//     in half.
//   - A difference names the run, the event, the field, and what each of the two says. It is one of the fold or of the model: both
//     were written from the same rules, and one of them breaks them.
//
// A run is compared from its first event on, after each event, as long as the same replica folds it. Those that were
// under way when the daemon started are left out, as are those that the model does not know (see modelfold).
package shadow
