// Package tested has the agent of docs/testing.md and its tests, as a user of Waymark writes them.
package tested
