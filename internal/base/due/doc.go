// Package due computes the due times of a schedule: when the clock on the wall of its time zone matches five cron fields.
//
// The due times are the same wherever the search begins. A wrong field and an unknown zone are errors, which say what is
// right.
package due
