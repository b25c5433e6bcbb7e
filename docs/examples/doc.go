// Package examples has the code that the pages of docs show, so that it compiles and is tested: an agent's
// loop, an example of each replay policy, approvals, questions, phases, cancellation, encryption, and the verification
// of a webhook's posts. A test compares the pages with these files.
//
// It is not part of the API: copy from it. Failures are the caller's.
package examples
