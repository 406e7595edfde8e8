package redrive

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ParkedMessage is a message that was parked: it is in the queue redrive.parked until a
// person replays or discards it.
type ParkedMessage struct {
	Queue     string // the work queue
	ID        string // its header x-redrive-id
	MessageID string // as the publisher set it; "" if not
	Attempt   int    // the last one, from 1
	Reason    string // why it was parked, in words
	// Err is what the handler returned, or a *PanicError, or ErrMaxDeliveries. It is nil for a
	// message that was parked unseen, since it could not be published again as it was.
	Err error
}

const (
	hookBuffer = 1024            // calls that wait, at most
	hookGrace  = 5 * time.Second // for those that wait when the client closes
)

// hook calls Config.OnParked on a goroutine of its own, so that no consumer waits for it.
type hook struct {
	client *Client
	events chan ParkedMessage
	stop   chan struct{} // closed when no more will come
	done   chan struct{}
	cancel context.CancelFunc
	full   atomic.Bool // calls are dropped, and that was logged
	panics sync.Once   // logs one
}

func newHook(c *Client) *hook {
	ctx, cancel := context.WithCancel(context.Background())
	h := &hook{client: c, events: make(chan ParkedMessage, hookBuffer), stop: make(chan struct{}), done: make(chan struct{}), cancel: cancel}
	go func() { // close waits for it
		defer close(h.done)
		h.callAll(ctx)
	}()
	return h
}

// add passes a message to the hook. It never waits.
func (h *hook) add(m ParkedMessage) {
	if h == nil {
		return
	}
	select {
	case h.events <- m:
		return
	default:
	}
	if h.full.CompareAndSwap(false, true) { // once, not for each message
		h.client.config.Log.Error("Config.OnParked is too slow: calls are dropped", "queue", m.Queue, "id", m.ID, "waiting", hookBuffer)
	}
	h.count(m.Queue, HookDropped)
}

// callAll calls Config.OnParked for one message after the other, until close has stopped it and none
// is left, or ctx ends.
func (h *hook) callAll(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case m := <-h.events:
			h.call(ctx, m)
		case <-h.stop:
			select {
			case m := <-h.events:
				h.call(ctx, m)
			default:
				return
			}
		}
	}
	for range len(h.events) {
		h.count((<-h.events).Queue, HookDropped)
	}
}

func (h *hook) call(ctx context.Context, m ParkedMessage) {
	config := &h.client.config
	if p := catch(func() { config.OnParked(ctx, m) }); p != nil {
		h.panics.Do(func() { // once; each is counted
			config.Log.Error("Config.OnParked panicked", "queue", m.Queue, "id", m.ID, "panic", fmt.Sprint(p.Value), "stack", string(p.Stack))
		})
		h.count(m.Queue, HookPanicked)
		return
	}
	h.full.Store(false)
	h.count(m.Queue, HookReturned)
}

func (h *hook) count(queue string, r HookResult) {
	count(h.client, queue, h.client.config.Metrics.Hook, HookEvent{queue, r})
}

// close waits for the remaining calls, for hookGrace, and then for returnGrace for the one
// under way.
func (h *hook) close() {
	if h == nil {
		return
	}
	defer h.cancel()
	close(h.stop)
	select {
	case <-h.done:
		return
	case <-time.After(hookGrace):
	}
	h.cancel()
	select {
	case <-h.done:
	case <-time.After(returnGrace):
		h.client.config.Log.Error("Config.OnParked did not return when its context ended, and is left behind", "waiting", len(h.events))
	}
}
