// Package fleet is the commands of a fleet as a whole: how it is, its making, its keys, shards and retention, and the doctor.
//
// # What it owns
//
// The files that a shared server is configured by ([Added]): keys, contexts and accounts of a fleet's roles; the changes of a fleet's
// settings; and what is wrong with a server, its streams and the daemons ([DoctorCmd]). It reads no run.
package fleet
