// Command anthropic is the shortest agent with a real model: the one of the README. It claims runs of the agent
// "writer" until it is killed, and the next process continues its runs.
package main
