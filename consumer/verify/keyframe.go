package verify

import (
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// compareKeyframe compares the keyframe of a folded segment with the fold. Reads of later points and pages start from a
// keyframe; recoveries do not.
func (v *verifier) compareKeyframe(n int, stored []byte) {
	_, head, err := schema.DecodeKeyframe(stored)
	problem := ""
	switch {
	case err != nil:
		problem = err.Error()
	case head == nil:
		return
	default:
		names := differing(head, &v.head)
		if len(names) == 0 {
			return
		}
		problem = "its keyframe is not the fold of the events up to it: " + strings.Join(names, ", ") + " differ"
	}
	v.found(&Finding{In: InSegment, Segment: n, Event: v.head.Position, Problem: problem, Instead: "the segments before it, and its events"})
}
