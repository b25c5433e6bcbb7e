package prompt

import (
	"regexp"
	"strings"
)

// Prompt formats commands so that they reach the same server and fleet as the current command: with the flags that
// named them. Settings from the environment apply to the next command, too, and are left out. The zero value has no
// such flags.
type Prompt struct {
	// Flags are quoted for a shell, each followed by a space.
	Flags string
	// Run replaces RUN in a text; empty if the command is about no run, or about several.
	Run string
}

// Command is a command of this program; its words are already quoted.
func (p Prompt) Command(words string) string { return "waymark " + p.Flags + words }

// runWord finds the placeholder of a run id in a command.
var runWord = regexp.MustCompile(`\bRUN\b`)

// Fill puts the flags and the run id into the commands of a text of this program. The text must contain no words from
// outside, because those could look like a command. Help needs no server.
func (p Prompt) Fill(text string) string {
	if strings.HasSuffix(text, " --help") {
		return text
	}
	if p.Run != "" {
		text = runWord.ReplaceAllLiteralString(text, p.Run) // a run id needs no quotes
	}
	return strings.ReplaceAll(text, "waymark ", p.Command(""))
}
