// Package storage is the commands that act on all that a fleet stores: backup, restore and cut, verify, cleanup and erase.
//
// # What it owns
//
// Whether what is stored is whole ([VerifyCmd], which a backup and a cleanup end with), its copy outside the fleet, and its removal with a
// report or a receipt, whose file is made before anything is removed. It shows no run's content, and changes no setting of a fleet.
package storage
