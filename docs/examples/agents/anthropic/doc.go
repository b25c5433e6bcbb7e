// Command anthropic is the shortest agent with a real model: the one of the README. It claims runs of the agent "writer" until it is
// killed, and its runs go on in the next process.
package main
