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
	topic = "replicas"
	// gather is how long what is to be said is gathered, so that a thousand failures
	// are one thing said.
	gather = 100 * time.Millisecond
	// pingUnheard and pingHeard are how often a replica says something to itself: until
	// it has heard it, it does not know that it listens, and silentFor is when it is taken
	// not to.
	pingUnheard, pingHeard = 200 * time.Millisecond, time.Second
	silentFor              = 5 * time.Second
	// mostFailed bounds what waits to be said, in bytes for each queue.
	mostFailed = 16 * 65_536
)

// Said is what one replica tells the others. It may be lost: whoever goes by it finds
// out otherwise, if later.
type Said struct {
	From string `json:"from"`
	Ping string `json:"ping,omitempty"` // for itself
	// Look: the side table has changed.
	Look bool `json:"look,omitempty"`
	// Operations are ids of those that have changed.
	Operations []string `json:"operations,omitempty"`
	// Failed are the ids, of 16 bytes each, of messages that failed and were not
	// returned by whoever says so, by queue.
	Failed map[string][]byte `json:"failed,omitempty"`
	// Flows are how many messages failed, were returned, parked and discarded since it
	// last said so, by queue.
	Flows map[string][4]int64 `json:"flows,omitempty"`
	// Returns is what came of the latest returns there, by queue; absent: see before.
	Breakers json.RawMessage `json:"breakers,omitempty"`
}

// outbox is what is to be said.
type outbox struct {
	mu   sync.Mutex
	said *Said
	news chan struct{}
}

// Say says something soon, together with what else there is to say: add adds to that,
// and must be quick. Nothing else is done with what it is given.
func (r *Replicas) Say(add func(*Said)) {
	r.out.mu.Lock()
	defer r.out.mu.Unlock()
	if r.out.said == nil {
		r.out.said = &Said{From: r.ID}
	}
	add(r.out.said)
	signal(r.out.news)
}

// Fail adds the id of a message that failed.
func (s *Said) Fail(queue string, id [16]byte) {
	if s.Failed == nil {
		s.Failed = map[string][]byte{}
	}
	if len(s.Failed[queue]) < mostFailed {
		s.Failed[queue] = append(s.Failed[queue], id[:]...)
	}
}

// Change adds operations that have changed.
func (s *Said) Change(operations ...string) {
	for _, id := range operations {
		if !slices.Contains(s.Operations, id) {
			s.Operations = append(s.Operations, id)
		}
	}
}

// Flow adds what happened to the messages of queues.
func (s *Said) Flow(of map[string][4]int64) {
	if s.Flows == nil {
		s.Flows = map[string][4]int64{}
	}
	for queue, n := range of {
		sum := s.Flows[queue]
		for i := range n {
			sum[i] += n[i]
		}
		s.Flows[queue] = sum
	}
}

// telling says what there is to say until ctx ends.
func (r *Replicas) telling(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-r.out.news:
		}
		r.out.mu.Lock()
		said := r.out.said
		r.out.said = nil
		r.out.mu.Unlock()
		if said == nil {
			continue
		}
		err := r.tell(ctx, said)
		if err != nil && ctx.Err() == nil {
			if !failing {
				r.Log.Warn("the other replicas are not told what happens here; trying again", "error", err)
			}
			r.Say(func(s *Said) { // the rest was only true then
				s.Look = s.Look || said.Look
				s.Change(said.Operations...)
				s.Flow(said.Flows)
			})
		}
		failing = err != nil
		rest(ctx, gather)
	}
}

func (r *Replicas) tell(ctx context.Context, said *Said) error {
	b, err := json.Marshal(said)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, call)
	defer cancel()
	return r.Store.Tell(ctx, topic, b)
}

// listening hears the others until ctx ends.
func (r *Replicas) listening(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		err := r.listen(ctx, func() { failing = false })
		if ctx.Err() != nil {
			return
		}
		if !failing {
			r.Log.Warn("this replica does not hear what the others say; trying again", "error", err)
		}
		failing = true
		rest(ctx, standEvery)
	}
}

var errSilent = errors.New("what it said to itself was not heard")

// listen hears the others until something may have been missed. live is called when
// it does hear.
func (r *Replicas) listen(ctx context.Context, live func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ping, heard := NewID(), make(chan struct{}, 1)
	var pings sync.WaitGroup
	pings.Go(func() { r.ping(ctx, ping, heard, live, cancel) })
	defer pings.Wait()
	err := r.Store.Listen(ctx, topic, func(b []byte) {
		var s Said
		switch err := json.Unmarshal(b, &s); {
		case err != nil: // of a version that says it otherwise
		case s.From == r.ID && s.Ping == ping:
			signal(heard)
		case s.From != r.ID && s.Ping == "":
			if s.Look {
				signal(r.look)
			}
			r.Hear(s)
		}
	})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(err)
	return err
}

// ping finds out whether this replica hears what is said.
func (r *Replicas) ping(ctx context.Context, ping string, heard <-chan struct{}, live func(), give context.CancelCauseFunc) {
	last, again, missed := time.Now(), pingUnheard, true
	for ctx.Err() == nil {
		_ = r.tell(ctx, &Said{From: r.ID, Ping: ping}) // what fails is not heard
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-timer.C:
			if time.Since(last) > silentFor {
				give(errSilent)
			}
			timer.Stop()
			continue
		case <-heard:
			last = time.Now()
		}
		if ctx.Err() == nil && missed {
			// From here on all is heard; what was before must be looked up.
			if missed = r.Missed(ctx) != nil; !missed {
				again = pingHeard
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
