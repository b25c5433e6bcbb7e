// Package storage has the commands about all stored data of a fleet: backup, restore and cut, verify, cleanup and
// erase.
//
// # What it owns
//
// Whether stored data is complete and undamaged ([VerifyCmd], which also ends a backup and a cleanup), its copy outside
// the fleet, and its removal with a report or a receipt, whose file is created before any removal. It shows no content
// of runs, and changes no setting of a fleet.
package storage
