// Package examples has the code that the pages of docs show, so that it compiles and is tested: an agent's loop, a
// worked example of each replay policy, approvals, questions, phases and winding up, encryption, and the check of a webhook's posts. A test compares
// the pages with these files.
//
// It owns nothing and is no part of the API: copy from it. What fails is the caller's.
package examples
