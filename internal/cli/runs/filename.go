package runs

import (
	"fmt"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxFileName is the maximum length of a file name in bytes, and maxExtension that of its extension. File systems allow 255.
	maxFileName  = 180
	maxExtension = 20
)

// reservedNames are device names on Windows, with any extension.
var reservedNames = map[string]bool{
	"con": true, "prn": true, "aux": true, "nul": true, "clock$": true, "conin$": true, "conout$": true,
}

// fileName makes a file name from a name that an executor chose. It is a single path element on every system: no
// separator, no character that Windows refuses or a terminal obeys, no leading dot, no device.
func fileName(name string) string {
	clean := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || strings.ContainsRune(`<>:"/\|?*`, r) || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, name)
	clean = strings.TrimRight(strings.TrimSpace(clean), ". ")
	if strings.HasPrefix(clean, ".") {
		clean = "_" + clean[1:]
	}
	if base, _, _ := strings.Cut(strings.ToLower(clean), "."); deviceName(strings.TrimRight(base, " ")) {
		clean = "_" + clean
	}
	if len(clean) > maxFileName {
		extension := path.Ext(clean)
		if len(extension) > maxExtension {
			extension = ""
		}
		clean = strings.TrimRight(shortened(clean, maxFileName-len(extension)), ". ") + extension
	}
	if clean == "" {
		return "artifact"
	}
	return clean
}

// deviceName reports whether Windows treats a lower-case name as a device: COM1 and LPT1 also with other forms of
// digits.
func deviceName(name string) bool {
	for _, port := range []string{"com", "lpt"} {
		if digit, ok := strings.CutPrefix(name, port); ok && utf8.RuneCountInString(digit) == 1 && strings.Contains("0123456789¹²³", digit) {
			return true
		}
	}
	return reservedNames[name]
}

// shortened is the beginning of a text, of at most so many bytes, without a partial character at its end.
func shortened(s string, most int) string {
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// fileNames gives each artifact a unique name, also on systems that ignore case: a used name gets a number.
type fileNames struct {
	taken map[string]bool
	// next is the next number to try for a name.
	next map[string]int
}

func (n *fileNames) of(name string) string {
	if n.taken == nil {
		n.taken, n.next = make(map[string]bool), make(map[string]int)
	}
	free := fileName(name)
	extension, wanted := path.Ext(free), strings.ToLower(free)
	begin := strings.TrimSuffix(free, extension)
	i := max(n.next[wanted], 2)
	for ; n.taken[strings.ToLower(free)]; i++ {
		free = fmt.Sprintf("%s-%d%s", begin, i, extension)
	}
	n.next[wanted] = i
	n.taken[strings.ToLower(free)] = true
	return free
}
