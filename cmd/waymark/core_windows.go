package main

// withoutCore has nothing to do: Windows writes dumps only where an administrator has asked for them.
func withoutCore() {}
