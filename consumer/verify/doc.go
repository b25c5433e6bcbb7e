// Package verify compares all stored data of a run with the fold of its segments and its log, and judges the executors
// that wrote the run.
//
// It owns the definitions of a [Finding], which is damage, and of a [Mistake], which an executor made, and knows which
// stored copy has the data that another one lost. It reads from the leaders and writes nothing. It knows the stored
// formats and package replay; it must not know the fold worker, the service or the reader, whose work it checks.
package verify
