package watch

import (
	"context"
	"encoding/json"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// savedName is the entry of the store's side table with what was seen.
const savedName = "watch"

// saved is its value. Its names in JSON are stored, and never change.
type saved struct {
	Unconsumed map[string]*unconsumed `json:"unconsumed"`
	Counts     map[string]*counts     `json:"counts"`
	None       history                `json:"none"`
}

// load reads what was saved, unless that was too long ago.
func (w *Watcher) load(ctx context.Context) {
	var s saved
	data, err := w.Store.Entry(ctx, savedName)
	if err == nil && data != nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		w.Log.Warn("what was seen of the queues before the start cannot be read; what is usual for each is not known for some hours", "error", err)
		return
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, u := range s.Unconsumed {
		if u != nil && len(u.Messages.Recent) > 0 && !u.Messages.isOld(now) {
			u.now = u.Messages.latest()
			w.unconsumed[name] = u
		}
	}
	for name, c := range s.Counts {
		if c != nil && len(c.Waiting.Recent) > 0 && len(c.Parked.Recent) > 0 && !c.Waiting.isOld(now) {
			w.rising[name] = c
		}
	}
	w.none = s.None
}

// save writes what was seen.
func (w *Watcher) save(ctx context.Context) error {
	w.mu.Lock()
	data, err := json.Marshal(saved{w.unconsumed, w.rising, w.none})
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.Store.PutEntries(ctx, []store.Entry{{Name: savedName, Value: data}})
}
