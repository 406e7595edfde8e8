package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	announcementTopic = "replicas"
	// sendEvery is for how long announcements are collected, so that a thousand failures are
	// one message.
	sendEvery = 100 * time.Millisecond
	// pingWhileUnsure and pingWhileReceiving are how often a replica sends itself a ping: until it
	// has received one, it does not know that it receives anything. After silentFor without one
	// it connects again.
	pingWhileUnsure, pingWhileReceiving = 200 * time.Millisecond, time.Second
	silentFor                           = 5 * time.Second
	// maxFailedIDs bounds the ids that wait to be announced, in bytes for each queue.
	maxFailedIDs = 16 * 65_536
)

// Announcement is what one replica sends to the others. It may be lost: what depends on it is
// also read from the store, later.
type Announcement struct {
	From string `json:"from"`
	Ping string `json:"ping,omitempty"` // to itself
	// SideTableChanged: replicas read it again.
	SideTableChanged bool `json:"look,omitempty"`
	// Operations are ids of those that have changed.
	Operations []string `json:"operations,omitempty"`
	// Failed are the ids, of 16 bytes each, of messages that failed and were not retried by
	// the sender, by queue.
	Failed map[string][]byte `json:"failed,omitempty"`
	// Flows are how many messages failed, were retried, parked and discarded since the sender's
	// last announcement, by queue.
	Flows map[string][4]int64 `json:"flows,omitempty"`
	// RetryStats are of the sender's latest retries, by queue; absent: as before.
	RetryStats json.RawMessage `json:"breakers,omitempty"`
}

// outbox collects what is announced next.
type outbox struct {
	mu    sync.Mutex
	next  *Announcement
	ready chan struct{}
}

// Announce sends an announcement soon, together with what else there is to announce: add adds
// to that, and must be quick. It must not keep what it is passed.
func (r *Replicas) Announce(add func(*Announcement)) {
	r.out.mu.Lock()
	defer r.out.mu.Unlock()
	if r.out.next == nil {
		r.out.next = &Announcement{From: r.ID}
	}
	add(r.out.next)
	signal(r.out.ready)
}

// AddFailed adds the id of a message that failed.
func (a *Announcement) AddFailed(queue string, id [16]byte) {
	if a.Failed == nil {
		a.Failed = map[string][]byte{}
	}
	if len(a.Failed[queue]) < maxFailedIDs {
		a.Failed[queue] = append(a.Failed[queue], id[:]...)
	}
}

// AddChanged adds operations that have changed.
func (a *Announcement) AddChanged(operations ...string) {
	for _, id := range operations {
		if !slices.Contains(a.Operations, id) {
			a.Operations = append(a.Operations, id)
		}
	}
}

// AddFlows adds what happened to the messages of queues.
func (a *Announcement) AddFlows(of map[string][4]int64) {
	if a.Flows == nil {
		a.Flows = map[string][4]int64{}
	}
	for queue, n := range of {
		sum := a.Flows[queue]
		for i := range n {
			sum[i] += n[i]
		}
		a.Flows[queue] = sum
	}
}

// runSending sends announcements until ctx ends.
func (r *Replicas) runSending(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-r.out.ready:
		}
		r.out.mu.Lock()
		sent := r.out.next
		r.out.next = nil
		r.out.mu.Unlock()
		if sent == nil {
			continue
		}
		err := r.send(ctx, sent)
		if err != nil && ctx.Err() == nil {
			if !failing {
				r.Log.Warn("cannot send announcements to the other replicas; trying again", "error", err)
			}
			r.Announce(func(a *Announcement) { // the other parts are out of date by then
				a.SideTableChanged = a.SideTableChanged || sent.SideTableChanged
				a.AddChanged(sent.Operations...)
				a.AddFlows(sent.Flows)
			})
		}
		failing = err != nil
		sleep(ctx, sendEvery)
	}
}

func (r *Replicas) send(ctx context.Context, sent *Announcement) error {
	b, err := json.Marshal(sent)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return r.Store.Send(ctx, announcementTopic, b)
}

// runReceiving receives announcements of others until ctx ends.
func (r *Replicas) runReceiving(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		err := r.receive(ctx, func() { failing = false })
		if ctx.Err() != nil {
			return
		}
		if !failing {
			r.Log.Warn("cannot receive announcements of the other replicas; trying again", "error", err)
		}
		failing = true
		sleep(ctx, electEvery)
	}
}

var errPingLost = errors.New("its own ping did not arrive")

// receive receives announcements until some may have been missed. live is called when it does
// receive them.
func (r *Replicas) receive(ctx context.Context, live func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ping, received := NewID(), make(chan struct{}, 1)
	var pings sync.WaitGroup
	pings.Go(func() { r.ping(ctx, ping, received, live, cancel) })
	defer pings.Wait()
	err := r.Store.Listen(ctx, announcementTopic, func(b []byte) {
		var a Announcement
		switch err := json.Unmarshal(b, &a); {
		case err != nil: // of a version with another format
		case a.From == r.ID && a.Ping == ping:
			signal(received)
		case a.From != r.ID && a.Ping == "":
			if a.SideTableChanged {
				signal(r.pollNow)
			}
			r.Receive(a)
		}
	})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(err)
	return err
}

// ping finds out whether this replica receives announcements.
func (r *Replicas) ping(ctx context.Context, ping string, received <-chan struct{}, live func(), fail context.CancelCauseFunc) {
	last, again, missed := time.Now(), pingWhileUnsure, true
	for ctx.Err() == nil {
		_ = r.send(ctx, &Announcement{From: r.ID, Ping: ping}) // one that fails does not arrive
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-timer.C:
			if time.Since(last) > silentFor {
				fail(errPingLost)
			}
			timer.Stop()
			continue
		case <-received:
			last = time.Now()
		}
		if ctx.Err() == nil && missed {
			// From here on all announcements arrive; earlier ones may have been missed.
			if missed = r.OnMissed(ctx) != nil; !missed {
				again = pingWhileReceiving
				live()
			}
		}
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}
