package inspect

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

// mostTopGroups is how many error groups of a queue are shown with it.
const mostTopGroups = 5

// QueueDetail is all that is known of one work queue.
type QueueDetail struct {
	Queue
	Now      time.Time      `json:"now"`
	Health   Health         `json:"health" doc:"Of this queue alone."`
	Hour     []Flow         `json:"hour" doc:"Each of the last 60 minutes, the current one last."`
	Calendar []Slot         `json:"calendar" doc:"As in the overview, of this queue alone."`
	Groups   []Group        `json:"top_groups" doc:"The error groups with the most messages, at most 5."`
	InForce  *PolicyInForce `json:"policy_in_force,omitempty" doc:"Absent where no policy matches: its messages are parked at once."`
	Ledger   *LedgerLine    `json:"ledger,omitempty" doc:"Absent when no message has come yet."`
	Doctor   *Examination   `json:"doctor,omitempty" doc:"What the doctor found about it; absent for callers without permission to see it."`
}

// Queue returns one work queue: ErrNotFound where neither we nor RabbitMQ know it.
func (in *Inspector) Queue(ctx context.Context, by auth.Caller, name string) (d QueueDetail, err error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return d, err
	}
	if !by.Sees(name) {
		return d, fmt.Errorf("%w: no queue %.255q", ErrNotFound, name)
	}
	s, err := in.enrolledToo(ctx, by)
	if err != nil {
		return d, err
	}
	one, known := store.QueueCount{Queue: name}, false
	if i, ok := slices.BinarySearchFunc(s.counts, name, byQueue); ok {
		one, known = s.counts[i], true
	}
	asking, cancel := context.WithTimeout(ctx, brokerWait)
	defer cancel()
	at, silent := in.AtBroker(asking, name)
	if !known && (silent != nil || !at.Exists) {
		return d, fmt.Errorf("%w: no queue %.255q", ErrNotFound, name)
	}
	s.counts = []store.QueueCount{one}
	if d.Queue = s.shown(s.counts)[0]; silent == nil {
		d.Broker = &at
	}
	d.Now = in.Now()
	if d.Hour = []Flow{}; in.Activity != nil {
		d.Hour = in.Activity.Hour(d.Now, func(queue string) bool { return queue == name })
	}
	d.Health = HealthOf(append(s.troubles(map[string]bool{}), examinationTroubles(in.examinedOf(by, name))...))
	if d.Calendar, err = in.slots(ctx, s.counts, d.Now); err != nil {
		return d, err
	}
	if p, ok := in.policies().Match(name); ok {
		f := in.inForce(p, by)
		if by.Queues != nil {
			f.Queues, f.YAML = nil, "" // others' queues
		}
		d.InForce = &f
	}
	if by.MaySee(auth.Operator) == nil {
		e := in.examinedOf(by, name)
		d.Doctor = &e
	}
	return d, in.keptOf(ctx, by, name, &d)
}

// keptOf adds a queue's error groups and its line of the ledger.
func (in *Inspector) keptOf(ctx context.Context, by auth.Caller, name string, d *QueueDetail) error {
	d.Groups = []Group{}
	groups, err := in.groupsSeen(ctx, by)
	if err != nil {
		return err
	}
	of := firstInOrder(mostTopGroups, func(yield func(*store.GroupCount) bool) {
		for i := range groups {
			if g := &groups[i]; g.Queue == name && g.Waiting+g.Parked > 0 && !yield(g) {
				return
			}
		}
	}, func(a, b *store.GroupCount) int { return placeOf(a).compare(placeOf(b)) })
	for _, g := range of {
		d.Groups = append(d.Groups, shownGroup(g))
	}
	lines, err := in.Store.Ledger(ctx)
	if err != nil {
		return err
	}
	in.recounts.mu.Lock()
	defer in.recounts.mu.Unlock()
	for i := range lines {
		if lines[i].Queue == name {
			l := lineOf(&lines[i], in.recounts.offOf(&lines[i]))
			d.Ledger = &l
		}
	}
	return nil
}

// examinedOf is what the doctor found about a queue.
func (in *Inspector) examinedOf(by auth.Caller, queue string) Examination {
	e := in.examined(by)
	e.Findings = slices.DeleteFunc(e.Findings, func(f Finding) bool { return f.Queue != queue })
	return e
}
