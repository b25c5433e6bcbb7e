// Package tested has the agent of docs/reliability.md and its tests, as a user of Waymark writes them.
package tested
