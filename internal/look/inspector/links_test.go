package inspector

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// On a fleet at work every address that a page links to is there.
func TestPages_EveryLink_LeadsSomewhere(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.stage.Fill()
	seen, left := map[string]bool{"/": true}, []string{"/"}
	links := regexp.MustCompile(`href="(/[^"#]*)`)
	for visited := 0; len(left) > 0 && visited < 80; visited++ {
		path := left[0]
		left = left[1:]
		for _, m := range links.FindAllStringSubmatch(d.page(path), -1) {
			if next := strings.ReplaceAll(m[1], "&amp;", "&"); !seen[next] && !strings.HasPrefix(next, "/assets/") {
				seen[next] = true
				left = append(left, next)
			}
		}
	}
	require.Greater(t, len(seen), 15)
}
