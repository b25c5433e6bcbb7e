// Package permissions turns a NATS server's refusals into errors of the caller that caused them.
//
// A server reports a refused publish or subscription only on the connection and not to the caller, who would wait for
// an answer until its deadline. A [Watch] receives the reports, and a caller that takes a [Tail] before its request
// learns of each refusal from then on.
//
// Nothing is kept: a refusal without a waiting caller is dropped, so that new permissions count at once.
package permissions
