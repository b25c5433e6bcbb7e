package main

// withoutCore does nothing: Windows writes dumps only if an administrator has configured it.
func withoutCore() {}
