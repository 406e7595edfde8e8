package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

// Replicas is what a console needs of the replicas that share its store. What is kept
// for long they all read in the store; this is so that they do it soon.
type Replicas interface {
	// Changed lets all know that these operations have changed; without any: that
	// something else in the side table has, which they then Look at.
	Changed(operations ...string)
	// All are those that are alive.
	All() []Replica
}

// Replica is one service of several that share a store.
type Replica struct {
	ID       string    `json:"id"`
	Address  string    `json:"address" doc:"Where its page and API are."`
	Version  string    `json:"version"`
	Since    time.Time `json:"since" doc:"When it started."`
	Beat     time.Time `json:"beat" doc:"When it was last heard of."`
	Leads    bool      `json:"leads" doc:"It is the leader: it runs operations, sends notifications, deletes what is old and decides about breakers."`
	Self     bool      `json:"self" doc:"It is the one that answers."`
	Ready    bool      `json:"ready" doc:"As its /readyz says."`
	Problems []string  `json:"problems,omitempty" doc:"What is wrong there; with single queues also while it is ready."`
}

// Silent tells of a replica, which beats four times a second, that it has missed several
// beats; soon it counts as gone.
func (r Replica) Silent(now time.Time) bool { return now.Sub(r.Beat) > 2*time.Second }

// changed tells the others of operations.
func (c *Console) changed(ids ...string) {
	if c.Replicas != nil {
		c.Replicas.Changed(ids...)
	}
}

// take begins or ends a time of leading: whatever is known of operations is read again.
func (o *operations) take(leads bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leads, o.loaded = leads, false
}

// Reread forgets what is known of operations, since something about them may not have
// been heard. The leader knows them best.
func (c *Console) Reread(context.Context) error {
	c.ops.mu.Lock()
	defer c.ops.mu.Unlock()
	if !c.ops.leads {
		c.ops.loaded = false
	}
	return nil
}

// Look reads what other replicas have written about pauses, breakers and orders:
// the store has it, and the scheduler and the gate here know it, and the leader. Call it
// every half second.
func (c *Console) Look(ctx context.Context, setPauses func(queues map[string]bool)) error {
	defer c.ops.awake()
	c.pausing.Lock()
	defer c.pausing.Unlock()
	pauses, err := c.pauses(ctx)
	if err != nil {
		return err
	}
	held := map[string]bool{}
	for queue := range pauses {
		held[queue] = true
	}
	setPauses(held)
	as := map[string]string{}
	err = c.Store.Entries(ctx, store.BreakerPrefix, "", func(e store.Entry) (bool, error) {
		as[strings.TrimPrefix(e.Name, store.BreakerPrefix)] = string(e.Value)
		return true, nil
	})
	if err != nil {
		return err
	}
	for queue, entry := range as {
		if c.forcedAs[queue] == entry {
			continue
		}
		var f Forced
		if err := json.Unmarshal([]byte(entry), &f); err != nil {
			return fmt.Errorf("the breaker of %q: %w", queue, err)
		}
		c.Force(queue, f.To, f.By, f.Reason)
	}
	for queue := range c.forcedAs {
		if _, is := as[queue]; !is {
			c.Force(queue, "auto", "", "a person lets it decide again")
		}
	}
	c.forcedAs = as
	return nil
}

// noteForced keeps Look from setting a breaker again that was set here. The caller
// has pausing.
func (c *Console) noteForced(queue string, entry []byte) {
	if c.forcedAs == nil {
		c.forcedAs = map[string]string{}
	}
	if c.forcedAs[queue] = string(entry); entry == nil {
		delete(c.forcedAs, queue)
	}
}

// Told is that another replica has changed operations: what is shown of them here is
// read again. Of those that it does, the leader knows best itself.
func (c *Console) Told(ctx context.Context, ids []string) {
	for _, id := range ids {
		c.ops.mu.Lock()
		op, skip := c.ops.all[id], !c.ops.loaded || c.ops.leads && c.ops.all[id] != nil
		c.ops.mu.Unlock()
		if skip {
			continue
		}
		if err := c.refresh(ctx, id, op); err != nil {
			_ = c.Reread(ctx) // whoever asks next finds out
			return
		}
	}
}

// refresh reads one operation again; op is what is known of it, or nil.
func (c *Console) refresh(ctx context.Context, id string, op *operation) error {
	value, err := c.Store.Entry(ctx, headPrefix+id)
	if err != nil {
		return err
	}
	var is *operation
	if value != nil {
		if is, err = c.readOperation(ctx, store.Entry{Name: headPrefix + id, Value: value}); err != nil {
			return err
		}
	}
	c.ops.mu.Lock()
	defer c.ops.mu.Unlock()
	switch {
	case !c.ops.loaded || c.ops.leads && c.ops.all[id] != nil: // it changed meanwhile
	case is == nil:
		delete(c.ops.all, id)
		delete(c.ops.active, id)
	case op == nil:
		c.ops.all[id] = is
	default: // another takes its place: who has the old one in hand reads on undisturbed
		now := time.Now()
		op.mu.Lock()
		is.speed = append(slices.Clone(op.speed), pace{now, is.dealt()})
		op.mu.Unlock()
		is.forget(now)
		c.ops.all[id] = is
	}
	if is != nil && is.active() {
		c.ops.active[id] = true
	} else {
		delete(c.ops.active, id)
	}
	return nil
}

// longestMade is longer than the making of a plan takes.
const longestMade = time.Hour

// madeAt is when an operation's id was made.
func madeAt(id string) time.Time {
	u, err := uuid.Parse(id)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(u.Time().UnixTime())
}

// recountEntry is where replicas find what the last recount has found.
const recountEntry = "recounted"

type recounted struct {
	At  time.Time
	Off map[string]int64
}

// LookAtLedger takes over what a recount at another replica has found.
func (c *Console) LookAtLedger(ctx context.Context) error {
	value, err := c.Store.Entry(ctx, recountEntry)
	if err != nil || value == nil {
		return err
	}
	var r recounted
	if err := json.Unmarshal(value, &r); err != nil {
		return fmt.Errorf("%s: %w", recountEntry, err)
	}
	c.recounts.mu.Lock()
	news := !c.recounts.at.Equal(r.At)
	c.recounts.mu.Unlock()
	if news {
		c.recounts.found(r.At, r.Off)
		if c.Recounted != nil {
			c.Recounted(r.Off)
		}
	}
	return nil
}

// replicasFor are those there are, for callers with permission to know what is wrong.
func (c *Console) replicasFor(by auth.Caller) []Replica {
	if c.Replicas == nil {
		return nil
	}
	all := c.Replicas.All()
	for i := range all {
		if by.Queues != nil {
			all[i].Problems = withoutQueues(all[i].Problems)
		}
	}
	return all
}

// deposed tells whether another replica leads by now: no error of this one's.
func deposed(err error) bool { return errors.Is(err, store.ErrDeposed) }
