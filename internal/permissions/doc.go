// Package permissions turns what a NATS server refuses for want of a permission into an error of whoever asked for it.
//
// It owns the way there: a server says of a refused publish or subscription only that it was refused, on the connection and
// not to the caller, who would wait for an answer until its deadline. A [Watch] hears it, and a caller that takes a [Tail] before
// it asks learns of each refusal from then on.
//
// Nothing is kept: a refusal that nobody waits for is gone, so that permissions which were granted meanwhile count at once.
package permissions
