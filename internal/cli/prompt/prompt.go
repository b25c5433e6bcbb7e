package prompt

import (
	"regexp"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Prompt writes commands of this program so that they reach the server and the fleet of the command that shows them: with
// the flags that named those. What the environment says it says to the next command, too. The zero value is of a command
// without such flags.
type Prompt struct {
	// Flags are quoted for a shell, each followed by a space.
	Flags string
	// Run stands where a text says RUN; empty if the command is about no run, or about several.
	Run string
}

// Command is a command of this program; words are quoted already.
func (p Prompt) Command(words string) string { return "waymark " + p.Flags + words }

// runWord finds the place of a run id in a command.
var runWord = regexp.MustCompile(`\bRUN\b`)

// Fill puts the flags and the run id into the commands of a text that is this program's own from end to end: in a text with words from
// outside, those could look like a command. Help needs no server.
func (p Prompt) Fill(text string) string {
	if strings.HasSuffix(text, " --help") {
		return text
	}
	if p.Run != "" {
		text = runWord.ReplaceAllLiteralString(text, p.Run) // a run id needs no quotes
	}
	return strings.ReplaceAll(text, "waymark ", p.Command(""))
}

// ShellCommand is a command of this program as a person types it.
func ShellCommand(args []string) string {
	var b strings.Builder
	b.WriteString("waymark")
	for _, arg := range args {
		if strings.HasPrefix(arg, "--") {
			b.WriteString(" " + arg) // a flag of this program, not text from outside
			continue
		}
		b.WriteString(" " + schema.ShellWord(arg))
	}
	return b.String()
}
