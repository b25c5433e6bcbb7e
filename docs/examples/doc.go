// Package examples has the code that docs/executors.md shows, so that it compiles and is tested: an agent's loop, a worked
// example of each replay policy, approvals, questions, phases and winding up. A test compares the page with these files.
//
// It owns nothing and is no part of the API: copy from it. What fails is the caller's.
package examples
