package actions

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// set changes what is set for a queue: in the store before it is put into force, so that it is not
// forgotten at the next start.
func (a *Actions) set(ctx context.Context, by auth.Caller, did, queue, reason string, e store.Entry, putIntoForce func()) error {
	end, err := a.Begin(by, did, queue, 0, reason)
	if err != nil {
		return err
	}
	if err := a.settings.Acquire(ctx, 1); err != nil {
		end(err, 0)
		return err
	}
	err = a.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{e})
	if err == nil {
		putIntoForce()
	}
	a.settings.Release(1)
	a.changed()
	end(err, 0)
	return err
}

// ReadSettings reads the pauses and breakers that other replicas have set, and sets them here in
// the scheduler and the throttle. It is called every half second.
func (a *Actions) ReadSettings(ctx context.Context, setPauses func(queues map[string]bool)) error {
	if err := a.settings.Acquire(ctx, 1); err != nil {
		return err
	}
	defer a.settings.Release(1)
	pauses, err := inspect.Pauses(ctx, a.Store)
	if err != nil {
		return err
	}
	paused := map[string]bool{}
	for queue := range pauses {
		paused[queue] = true
	}
	setPauses(paused)
	as := map[string]string{}
	err = a.Store.Entries(ctx, store.BreakerPrefix, "", func(e store.Entry) (bool, error) {
		as[strings.TrimPrefix(e.Name, store.BreakerPrefix)] = string(e.Value)
		return true, nil
	})
	if err != nil {
		return err
	}
	for queue, entry := range as {
		if a.forcedEntries[queue] == entry {
			continue
		}
		var f inspect.Forced
		if err := json.Unmarshal([]byte(entry), &f); err != nil {
			return fmt.Errorf("the breaker of %q: %w", queue, err)
		}
		a.Force(queue, f.To, f.By, f.Reason)
	}
	for queue := range a.forcedEntries {
		if _, is := as[queue]; !is {
			a.Force(queue, "auto", "", "a person lets it decide again")
		}
	}
	a.forcedEntries = as
	return nil
}

// noteForced keeps ReadSettings from setting a breaker again that was set here. The caller
// holds settings.
func (a *Actions) noteForced(queue string, entry []byte) {
	if a.forcedEntries == nil {
		a.forcedEntries = map[string]string{}
	}
	if a.forcedEntries[queue] = string(entry); entry == nil {
		delete(a.forcedEntries, queue)
	}
}
