// Package verify compares everything that is stored of a run with the fold of its segments and its log.
//
// It owns what a finding is, and which of the stored copies has what another one lost. It reads from the leaders and writes nothing. It
// knows the stored formats and package replay; it must not know the fold worker, the service or the reader, whose work it checks.
package verify
