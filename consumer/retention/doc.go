// Package retention carries out orders to remove runs.
//
// It owns the mark of a removal in the log, and the remover, which goes on with the orders of a shard: count, take out, count again,
// receipt, and another look once a power cut can bring nothing back. It must not know the fold worker, which tells it of folded marks,
// or the service, which orders.
package retention
