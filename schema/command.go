package schema

import "strings"

// Command writes a command for a POSIX shell: words and flags of a program, and arguments from outside, each of which
// stays one argument. If one begins with "-", they come last and behind "--", which no parser takes for flags.
func Command(words, flags string, args ...string) string {
	var quoted strings.Builder
	dash := false
	for _, arg := range args {
		quoted.WriteString(" " + shellWord(arg))
		dash = dash || strings.HasPrefix(arg, "-")
	}
	if dash {
		return words + flags + " --" + quoted.String()
	}
	return words + quoted.String() + flags
}

// Flag writes a flag for [Command], with a value from outside, behind a space.
func Flag(name, value string) string {
	between := " "
	if strings.HasPrefix(value, "-") {
		between = "=" // it is not a flag
	}
	return " --" + name + between + shellWord(value)
}

// shellWord writes text from outside so that a shell reads it as one word and nothing else.
func shellWord(s string) string {
	plain := s != "" && s[0] != '-' && !strings.ContainsFunc(s, func(r rune) bool {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("_-.:/@%+=,", r):
			return false
		}
		return true
	})
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
