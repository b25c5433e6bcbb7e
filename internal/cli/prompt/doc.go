// Package prompt writes commands of this program as a person types them: for the server, the fleet and the run of the command that shows
// them. It knows words, and nothing of what they do.
package prompt
