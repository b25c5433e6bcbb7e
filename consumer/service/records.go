package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/schema"
)

const (
	// recordOverhead is the size of a record in a page without its event.
	recordOverhead = 256
	// pageSlack is how much larger a page may be than its parts.
	pageSlack = 512
)

// records answers with a page of a run's records. It reads the segments that hold them, and those from the nearest earlier keyframe on.
func (s *Service) records(ctx context.Context, t *task, req *schema.RecordsRequest) (*schema.RecordsReply, error) {
	switch {
	case req.From > 0 && req.Through > 0:
		return nil, badField("/through", errors.New("from and through go alone: a page has limit records"))
	case req.MaxBytes != 0 && req.MaxBytes < schema.MinReplyBytes:
		return nil, badField("/max_bytes", fmt.Errorf("max_bytes is %d: it is at least %d", req.MaxBytes, schema.MinReplyBytes))
	}
	r, err := s.whole(ctx, t.run)
	if err != nil {
		return nil, err
	}
	total := r.Head.Records
	from, through := pageOf(req, total)
	reply := &schema.RecordsReply{
		Run: t.run, Before: schema.NewHead(s.cfg.Fleet, t.run), Records: []schema.RecordView{}, Total: total, Complete: r.Complete(), Gaps: r.Gaps(),
	}
	if from > through {
		return reply, nil
	}
	p := &recordPage{r: r, brief: req.Brief, limit: t.replyLimit(req.MaxBytes) - pageSlack, ahead: req.From > 0}
	if err := p.read(ctx, s.reader, from, through); err != nil {
		return nil, err
	}
	// A page that is too large loses its oldest records, or its newest if the request named the first record.
	if !p.ahead && len(p.list) > 0 && p.list[0].Record > from {
		p.ahead = true
		if err := p.read(ctx, s.reader, p.list[0].Record, through); err != nil {
			return nil, err
		}
	}
	reply.Before, reply.Records = p.before, p.list
	return reply, nil
}

// whole reads a run with its content.
func (s *Service) whole(ctx context.Context, run string) (*reader.Snapshot, error) {
	r, err := s.routing.proven(ctx, run, reader.Content)
	if err == nil && r.Head.Status == "" {
		return nil, errNothingAccepted(run)
	}
	return r, err
}

// pageOf returns the first and the last record of the requested page; total is the number of records of the run.
func pageOf(req *schema.RecordsRequest, total int64) (from, through int64) {
	limit := int64(cmp.Or(req.Limit, schema.DefaultRecords))
	if req.From > 0 {
		return req.From, min(req.From-1+limit, total)
	}
	through = total
	if req.Through > 0 {
		through = min(req.Through, total)
	}
	return max(through-limit+1, 1), through
}

// recordPage is a page that is being read.
type recordPage struct {
	r     *reader.Snapshot
	brief bool
	limit int64
	// ahead: what does not fit is left out at the end, else in front.
	ahead  bool
	before schema.Head
	// head is the size of before, size that of the list.
	head, size int64
	list       []schema.RecordView
}

// errPageFull ends the reading of a page.
var errPageFull = errors.New("the page is full")

// read reads the records into the page, and holds no more than fit.
func (p *recordPage) read(ctx context.Context, rd *reader.Reader, from, through int64) error {
	begin := func(h *schema.Head) error {
		p.before, p.list, p.size = h.Clone(), nil, 0
		text, err := encode(&p.before)
		p.head = int64(len(text))
		return err
	}
	err := rd.Records(ctx, p.r, from, through, begin, func(seen *reader.Seen) error {
		view, err := schema.NewRecordView(seen.Record, &seen.Verdict, p.brief)
		if err != nil {
			return err
		}
		view.Record, view.Epoch, view.Turn, view.LeftBehind = seen.Number, seen.Head.Epoch, seen.Head.Turn, p.r.Head.LeftBehind(seen.Number)
		if sizeOfRecord(&view) > p.limit-p.head {
			if err := view.Shorten(seen.Event); err != nil {
				return err
			}
		}
		return p.add(&view)
	})
	if errors.Is(err, errPageFull) {
		return nil
	}
	return err
}

// add adds a record, and drops the oldest records that no longer fit. A page has one record at least.
func (p *recordPage) add(v *schema.RecordView) error {
	room, size := p.limit-p.head, sizeOfRecord(v)
	if p.ahead && p.size+size > room && len(p.list) > 0 {
		return errPageFull
	}
	p.list = append(p.list, *v)
	p.size += size
	for p.size > room && len(p.list) > 1 {
		p.size -= sizeOfRecord(&p.list[0])
		p.list[0] = schema.RecordView{}
		p.list = p.list[1:]
	}
	return nil
}

func sizeOfRecord(v *schema.RecordView) int64 {
	size := int64(len(v.Event) + len(v.Detail) + recordOverhead)
	for i := range v.LeftOut {
		size += int64(len(v.LeftOut[i].Path) + recordOverhead/4)
	}
	return size
}
