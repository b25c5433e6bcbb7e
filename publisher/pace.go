package publisher

import "time"

// pace is what one stream has shown of the time that single messages and batches take, and from it how many must wait
// at once for a batch to be the faster way: some twenty where each message is synced by itself, more where the
// server groups single messages, as three replicas do.
//
// What is not measured any more is forgotten little by little: the way that is not taken looks cheaper each time, until
// it is tried again.
type pace struct {
	// least is the smallest number from which there is a group at all.
	least int
	// each is the time that one message takes when they are sent singly; whole that of a batch. 0 for not known.
	each, whole time.Duration
	// forgot: some of whole was forgotten since it was measured.
	forgot bool
}

const (
	// paceKeeps is the part of the older measurements that a new one leaves, of 8; less of what was forgotten in part.
	paceKeeps       = 6
	paceKeepsForgot = 2
	// forgetSingle and forgetBatch are the parts by which a time shrinks each time the other way is taken.
	forgetSingle = 128
	forgetBatch  = 16384
)

// from is the number of members from which a batch is taken to be faster.
func (p *pace) from() int {
	if p.each <= 0 || p.whole <= 0 {
		return p.least
	}
	return max(p.least, min(int(p.whole/p.each), groupEvents))
}

// passed notes that one of so many went singly.
func (p *pace) passed(active int) {
	if active >= p.least {
		p.whole -= p.whole / forgetBatch
		p.forgot = true
	}
}

// single notes how long a message took, divided by the number of those under way.
func (p *pace) single(d time.Duration) { p.each = mix(p.each, d, paceKeeps) }

// batch notes how long a batch took.
func (p *pace) batch(d time.Duration) {
	keeps := time.Duration(paceKeeps)
	if p.forgot {
		p.forgot, keeps = false, paceKeepsForgot
	}
	if p.whole == 0 {
		p.whole = p.each * time.Duration(p.least)
	}
	p.whole = mix(p.whole, d, keeps)
	p.each -= p.each / forgetSingle
}

// mix takes a measurement in. One that is much longer than those before it says more about a pause of the server than
// about the way that was taken.
func mix(old, d, keeps time.Duration) time.Duration {
	if old == 0 {
		return max(d, 1)
	}
	return max((old*keeps+min(d, 2*old)*(8-keeps))/8, 1)
}
