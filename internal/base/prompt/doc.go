// Package prompt formats commands of this program as a person types them, for the server, the fleet and the run of the
// current command. It knows words only, not their meaning.
package prompt
