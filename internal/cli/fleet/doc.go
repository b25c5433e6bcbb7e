// Package fleet has the commands about a fleet as a whole: its state, its creation, its keys, shards and retention, and
// the doctor.
//
// # What it owns
//
// The files that configure a shared server ([Added]): keys, contexts and accounts of a fleet's roles; changes of a
// fleet's settings; and problems of a server, its streams and the daemons ([DoctorCmd]). It reads no run.
package fleet
