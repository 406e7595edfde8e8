package storetest

import (
	"context"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// Filter chooses records to list.
type Filter struct {
	State store.State // 0: waiting and parked
	Queue string      // "": all
	ID    uuid.UUID
	After string // Page.After of the page before; "": from the start
	Limit int    // 1 to 1,000; 0 means 100
	Body  bool   // with bodies
}

// Max is Limit within its range.
func (f Filter) Max() int {
	if f.Limit <= 0 {
		return 100
	}
	return min(f.Limit, 1000)
}

// Page is a piece of a listing. After is empty on the last one.
type Page struct {
	Records []store.Listed
	After   string
}

// List is a page of what a store's Scan visits, for tests that want records and no visits.
func List(ctx context.Context, s store.Scanner, f Filter) (Page, error) {
	var p Page
	show := func(l store.Listed) (more bool, err error) {
		switch {
		case f.State == 0 && l.Record.State == store.Discarded || f.State != 0 && f.State != l.Record.State, f.Queue != "" && f.Queue != l.Record.Queue:
			return true, nil
		case len(p.Records) == f.Max():
			p.After = p.Records[f.Max()-1].Cursor
			return false, nil
		}
		p.Records = append(p.Records, l)
		return true, nil
	}
	if f.ID == uuid.Nil {
		r := store.Range{State: f.State, After: f.After, Body: f.Body}
		if f.Queue != "" {
			r.Queues = []string{f.Queue}
		}
		err := s.Scan(ctx, r, show)
		return p, err
	}
	all, err := s.Find(ctx, f.ID) // few, and in one page
	for _, l := range all {
		if !f.Body {
			l.Record.Message.Body = nil
		}
		if more, _ := show(l); !more {
			break
		}
	}
	p.After = ""
	return p, err
}
