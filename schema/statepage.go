package schema

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// entryKind is the kind of an [entry] of a page.
type entryKind int

const (
	entryTurn entryKind = iota
	entryCall
	entryMessage
)

// entry is a unit of a page: one turn, call or message of a view, by its index there. Pages are cut between entries.
type entry struct {
	kind entryKind
	i    int
	turn int32
	// first: it is the first entry of a turn.
	first bool
}

// entries are those of the view, oldest first. Those of a turn are adjacent: its record, its calls, its messages. A
// message outside of turns belongs to the preceding entry.
func (v *StateView) entries() []entry {
	type group struct {
		turn         int32
		turns, calls []int
		from, to     int // messages
	}
	groups := []*group{{}}
	of := map[int32]*group{0: groups[0]}
	for i := range v.Messages {
		g := groups[len(groups)-1]
		if turn := v.Messages[i].Turn; turn != 0 && turn != g.turn {
			g = &group{turn: turn, from: i}
			groups = append(groups, g)
			if of[turn] == nil {
				of[turn] = g
			}
		}
		g.to = i + 1
	}
	// find returns the first group of a turn. A turn without messages precedes the next turn.
	find := func(turn int32) *group {
		g := of[turn]
		if g == nil {
			g = &group{turn: turn}
			of[turn] = g
			at := slices.IndexFunc(groups, func(o *group) bool { return o.turn > turn })
			if at < 0 {
				at = len(groups)
			}
			groups = slices.Insert(groups, at, g)
		}
		return g
	}
	for i := range v.Turns {
		g := find(v.Turns[i].Turn)
		g.turns = append(g.turns, i)
	}
	for i := range v.Calls {
		g := find(v.Calls[i].Turn)
		g.calls = append(g.calls, i)
	}
	out := make([]entry, 0, len(v.Turns)+len(v.Calls)+len(v.Messages))
	for _, g := range groups {
		begins := len(out)
		for _, i := range g.turns {
			out = append(out, entry{kind: entryTurn, i: i, turn: g.turn})
		}
		for _, i := range g.calls {
			out = append(out, entry{kind: entryCall, i: i, turn: g.turn})
		}
		for i := g.from; i < g.to; i++ {
			out = append(out, entry{kind: entryMessage, i: i, turn: g.turn})
		}
		if len(out) > begins {
			out[begins].first = true
		}
	}
	return out
}

// Entries is the number of turns, calls and messages, the unit of Before of a [GetRequest].
func (v *StateView) Entries() int { return len(v.Turns) + len(v.Calls) + len(v.Messages) }

// Page returns the newest turns of the view that fit into a number of bytes as JSON, approximately: the caller must
// compare. before, if not 0, is the number of entries at which the page ends; such a page has only turns, calls and
// messages. A turn that does not fit by itself is cut between its entries, and an entry that does not fit loses its
// largest fields. [Older] has no subject and no point yet if its request has Before.
func (v *StateView) Page(before, room int) (*StateView, error) {
	entries := v.entries()
	end := len(entries)
	if before != 0 {
		end = before
	}
	var sizes []int // of the newest entries that fit
	need := 0
	for i := end - 1; i >= 0 && need <= room; i-- {
		size, err := sizeOf(v.entry(entries[i]))
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, size+len(","))
		need += sizes[len(sizes)-1]
	}
	page := &StateView{}
	if before == 0 {
		*page = *v
	}
	page.Messages, page.Turns, page.Calls, page.Older = []MessageView{}, nil, nil, v.Older
	rest, err := page.shed(max(room/2, room-need))
	if err != nil {
		return nil, err
	}
	room -= rest
	begin, whole := end, end
	for used := 0; begin > 0; begin-- {
		if used += sizes[end-begin]; used > room {
			break
		}
		if entries[begin-1].first {
			whole = begin - 1
		}
	}
	if whole < end {
		begin = whole
	}
	if begin == end && end > 0 {
		begin--
		if err := page.reduce(v, entries[begin], room); err != nil {
			return nil, err
		}
	} else {
		page.take(v, entries[begin:end])
	}
	if begin > 0 {
		page.Older = v.olderThan(entries[:begin])
		if o := v.Older; o != nil {
			page.Older.FirstTurn, page.Older.Messages, page.Older.Calls = o.FirstTurn, page.Older.Messages+o.Messages, page.Older.Calls+o.Calls
		}
	}
	return page, nil
}

// olderThan describes the entries before a page.
func (v *StateView) olderThan(entries []entry) *Older {
	o := &Older{FirstTurn: entries[0].turn, LastTurn: entries[len(entries)-1].turn, Request: GetRequest{Before: len(entries)}}
	for _, e := range entries {
		switch e.kind {
		case entryMessage:
			if v.Messages[e.i].EventID != "" {
				o.Messages++
			}
		case entryCall:
			o.Calls++
		case entryTurn:
		}
	}
	return o
}

// entry returns the value of an entry in the view.
func (v *StateView) entry(e entry) any {
	switch e.kind {
	case entryTurn:
		return &v.Turns[e.i]
	case entryCall:
		return &v.Calls[e.i]
	default:
		return &v.Messages[e.i]
	}
}

// take copies entries of another view into the page, each kind in its own order.
func (v *StateView) take(from *StateView, entries []entry) {
	entries = slices.Clone(entries)
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.i, b.i) })
	for _, e := range entries {
		switch e.kind {
		case entryTurn:
			v.Turns = append(v.Turns, from.Turns[e.i])
		case entryCall:
			v.Calls = append(v.Calls, from.Calls[e.i])
		default:
			v.Messages = append(v.Messages, from.Messages[e.i])
		}
	}
}

func sizeOf(v any) (int, error) {
	b, err := json.Marshal(v, json.Deterministic(true))
	return len(b), err
}

// field is a field that can be left out: its place, its size, and the function that removes it.
type field struct {
	path string
	size int
	drop func()
}

// add lists a field if there is one.
func add[T any](list []field, path string, value *T, there bool) []field {
	if !there {
		return list
	}
	size, err := sizeOf(value)
	if err != nil {
		return list // the whole view cannot be written either, and the caller gets that error
	}
	return append(list, field{path, size, func() { *value = *new(T) }})
}

// leaveOut removes the largest of the fields until the rest fits, and records them. It returns the remaining size.
func (v *StateView) leaveOut(size, room int, fields []field) int {
	slices.SortStableFunc(fields, func(a, b field) int { return cmp.Compare(b.size, a.size) })
	for _, f := range fields {
		if size <= room {
			break
		}
		out := LeftOut{Path: f.path, Size: f.size}
		said, err := sizeOf(&out)
		if err != nil || said >= f.size {
			break // its record would take more room than the field
		}
		f.drop()
		v.LeftOut = append(v.LeftOut, out)
		size += said - f.size
	}
	return size
}

// shed removes the largest remaining members until the page fits, and returns its size.
func (v *StateView) shed(room int) (int, error) {
	size, err := sizeOf(v)
	if err != nil || size <= room {
		return size, err
	}
	var fields []field
	fields = add(fields, "/started", &v.Started, v.Started != nil)
	fields = add(fields, "/phases", &v.Phases, v.Phases != nil)
	fields = add(fields, "/waits", &v.Waits, v.Waits != nil)
	fields = add(fields, "/handoffs", &v.Handoffs, v.Handoffs != nil)
	fields = add(fields, "/artifacts", &v.Artifacts, v.Artifacts != nil)
	fields = add(fields, "/errors", &v.Errors, v.Errors != nil)
	fields = add(fields, "/limits", &v.Limits, v.Limits != nil)
	fields = add(fields, "/decisions", &v.Decisions, v.Decisions != nil)
	fields = add(fields, "/takeovers", &v.Takeovers, v.Takeovers != nil)
	fields = add(fields, "/ended", &v.Ended, v.Ended != nil)
	fields = add(fields, "/values", &v.Values, v.Values != nil)
	fields = add(fields, "/signals", &v.Signals, v.Signals != nil)
	fields = add(fields, "/unknown", &v.Unknown, v.Unknown != nil)
	return v.leaveOut(size, room, fields), nil
}

// reduce puts one entry that is larger than the room into the page, without its largest fields.
func (v *StateView) reduce(from *StateView, e entry, room int) error {
	v.take(from, []entry{e})
	size, err := sizeOf(v.entry(entry{kind: e.kind}))
	if err != nil {
		return err
	}
	raw := func(list []field, path string, value *jsontext.Value) []field {
		return add(list, path, value, len(*value) > 0)
	}
	var fields []field
	var unknown []*unknownMembers
	members := func(list []field, path string, value *jsontext.Value) []field {
		u := &unknownMembers{value: value}
		unknown = append(unknown, u)
		return u.add(list, path)
	}
	switch e.kind {
	case entryTurn:
		t := &v.Turns[0]
		fields = add(fields, "/turns/0/answer", &t.Answer, t.Answer != nil)
		fields = add(fields, "/turns/0/ended", &t.Ended, t.Ended != nil)
	case entryCall:
		c := &v.Calls[0]
		fields = raw(fields, "/calls/0/arguments", &c.Arguments)
		fields = raw(fields, "/calls/0/result", &c.Result)
		fields = raw(fields, "/calls/0/source", &c.Source)
		fields = raw(fields, "/calls/0/result_source", &c.ResultSource)
		fields = add(fields, "/calls/0/error", &c.Error, c.Error != nil)
		fields = add(fields, "/calls/0/late", &c.Late, c.Late != nil)
		fields = add(fields, "/calls/0/side_effect", &c.SideEffect, c.SideEffect != "")
		fields = add(fields, "/calls/0/idempotency_key", &c.IdempotencyKey, c.IdempotencyKey != "")
		fields = add(fields, "/calls/0/settlements", &c.Settlements, c.Settlements != nil)
		fields = add(fields, "/calls/0/refs", &c.Refs, c.Refs != nil)
	case entryMessage:
		m := &v.Messages[0]
		m.Parts = slices.Clone(m.Parts)
		for i := range m.Parts {
			p, at := &m.Parts[i], fmt.Sprintf("/messages/0/parts/%d", i)
			fields = add(fields, at+"/content", &p.Content, p.Content != nil)
			fields = raw(fields, at+"/arguments", &p.Arguments)
			fields = raw(fields, at+"/response", &p.Response)
			fields = raw(fields, at+"/source", &p.Source)
			fields = members(fields, at, &p.Extra)
		}
		fields = raw(fields, "/messages/0/source", &m.Source)
		fields = members(fields, "/messages/0", &m.Extra)
	}
	size = v.leaveOut(size, room, fields)
	for _, u := range unknown {
		if err := u.write(); err != nil {
			return err
		}
	}
	if size <= room {
		return nil
	}
	switch e.kind {
	case entryTurn:
		t := &from.Turns[e.i]
		v.Turns[0] = StateTurn{Turn: t.Turn, Attempts: t.Attempts}
		return v.leaveOutAs("/turns/0", t)
	case entryCall:
		c := &from.Calls[e.i]
		v.Calls[0] = Call{CallKey: c.CallKey, Name: c.Name, Outcome: c.Outcome}
		return v.leaveOutAs("/calls/0", c)
	case entryMessage:
	}
	// Thousands of parts are too large even without their content and without a record of each.
	m, whole := &v.Messages[0], &from.Messages[e.i]
	v.LeftOut = slices.DeleteFunc(v.LeftOut, func(l LeftOut) bool { return at(l.Path, "/messages/0/parts") })
	m.Parts, m.Refs = nil, nil
	if size, err = v.leaveWhole("/messages/0/parts", whole.Parts); err != nil || size <= room {
		return err
	}
	// Thousands of unknown members are too large as well.
	v.LeftOut = slices.DeleteFunc(v.LeftOut, func(l LeftOut) bool { return at(l.Path, "/messages/0") })
	*m = MessageView{Role: m.Role, Turn: m.Turn, EventID: m.EventID, Epoch: m.Epoch, Time: m.Time}
	_, err = v.leaveWhole("/messages/0", whole)
	return err
}

// leaveOutAs names a whole turn or call instead of its fields.
func (v *StateView) leaveOutAs(path string, what any) error {
	size, err := sizeOf(what)
	v.LeftOut = slices.DeleteFunc(v.LeftOut, func(l LeftOut) bool { return at(l.Path, path) })
	v.LeftOut = append(v.LeftOut, LeftOut{Path: path, Size: size})
	return err
}

// leaveWhole names the parts left out of the only message of the page, and returns the remaining size.
func (v *StateView) leaveWhole(path string, what any) (int, error) {
	size, err := sizeOf(what)
	if err != nil {
		return 0, err
	}
	v.LeftOut = append(v.LeftOut, LeftOut{Path: path, Size: size})
	left, err := sizeOf(&v.Messages[0])
	words, err2 := sizeOf(slices.DeleteFunc(slices.Clone(v.LeftOut), func(l LeftOut) bool { return !at(l.Path, "/messages/0") }))
	return left + words, errors.Join(err, err2)
}

// unknownMembers are the unknown members of an object. They are encoded once, after all removals.
type unknownMembers struct {
	value   *jsontext.Value
	members map[string]jsontext.Value
	less    bool
}

// add lists each of them at the path of the object.
func (u *unknownMembers) add(list []field, path string) []field {
	if len(*u.value) == 0 || json.Unmarshal(*u.value, &u.members) != nil {
		return list
	}
	for _, name := range slices.Sorted(maps.Keys(u.members)) {
		list = append(list, field{string(jsontext.Pointer(path).AppendToken(name)), len(u.members[name]), func() {
			delete(u.members, name)
			u.less = true
		}})
	}
	return list
}

// write encodes the object without the removed members.
func (u *unknownMembers) write() (err error) {
	switch {
	case !u.less:
	case len(u.members) == 0:
		*u.value = nil
	default:
		*u.value, err = json.Marshal(u.members, json.Deterministic(true))
	}
	return err
}
