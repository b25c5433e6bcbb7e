package cli

import (
	"regexp"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// prompt writes commands of this program so that they reach the server and the fleet of the command that shows them: with
// the flags that named those. What the environment says it says to the next command, too. The zero value is of a command
// without such flags.
type prompt struct {
	// flags are quoted for a shell, each followed by a space.
	flags string
	// run stands where a text says RUN; empty if the command is about no run, or about several.
	run string
}

// promptOf is the prompt of a command with those flags. Passwords and tokens are not shown: the next command is refused
// without them, and says where it takes them from.
func promptOf(c *cli, getenv func(string) string) prompt {
	var b strings.Builder
	flag := func(name, value string) {
		b.WriteString(name)
		if strings.HasPrefix(value, "-") {
			b.WriteByte('=') // it is no flag
		} else {
			b.WriteByte(' ')
		}
		b.WriteString(schema.ShellWord(value) + " ")
	}
	if c.StateDir != "" && c.StateDir != getenv("WAYMARK_STATE_DIR") {
		flag("--state-dir", c.StateDir)
	}
	for name, value := range c.Conn.settings().Flags() {
		flag(name, value)
	}
	// The fleet is shown wherever it is not the usual one: whoever reads the command should see whose run it is about.
	usual := getenv("WAYMARK_FLEET") == "" || getenv("WAYMARK_FLEET") == schema.DefaultFleet
	if c.Fleet != "" && (c.Fleet != schema.DefaultFleet || !usual) {
		flag("--fleet", c.Fleet)
	}
	return prompt{flags: b.String()}
}

// command is a command of this program; words are quoted already.
func (p prompt) command(words string) string { return "waymark " + p.flags + words }

// runWord finds the place of a run id in a command.
var runWord = regexp.MustCompile(`\bRUN\b`)

// fill puts the flags and the run id into the commands of a text that is this program's own from end to end: in a text with words from
// outside, those could look like a command. Help needs no server.
func (p prompt) fill(text string) string {
	if strings.HasSuffix(text, " --help") {
		return text
	}
	if p.run != "" {
		text = runWord.ReplaceAllLiteralString(text, p.run) // a run id needs no quotes
	}
	return strings.ReplaceAll(text, "waymark ", p.command(""))
}
