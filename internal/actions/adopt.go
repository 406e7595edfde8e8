package actions

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/frameworks"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/wire"
)

// AdoptRequest names a dead-letter queue to adopt.
type AdoptRequest struct {
	Queue  string  `json:"queue" minLength:"1" maxLength:"255" doc:"The dead-letter or error queue."`
	Preset string  `json:"preset,omitempty" maxLength:"40" doc:"The framework whose headers are believed, such as masstransit; none: x-death alone; left out: whichever wrote them."`
	Follow bool    `json:"follow,omitempty" doc:"Continue when the queue is empty."`
	Rate   float64 `json:"rate,omitempty" minimum:"0" maximum:"1000000" doc:"Messages per second; 0: unlimited."`
	Reason string  `json:"reason,omitempty" maxLength:"500" doc:"Why, for the audit log."`
}

// Adoption is a queue that is adopted, or was.
type Adoption struct {
	Queue   string     `json:"queue"`
	Preset  string     `json:"preset,omitempty"`
	Follow  bool       `json:"follow,omitempty"`
	Rate    float64    `json:"rate,omitempty"`
	By      string     `json:"by"`
	Since   time.Time  `json:"since"`
	Adopted int64      `json:"adopted" doc:"How many messages, since then."`
	Left    int        `json:"left" doc:"How many the queue had lately."`
	Last    *time.Time `json:"last,omitempty" doc:"When the latest was adopted."`
	Ended   *time.Time `json:"ended,omitempty"`
	Problem string     `json:"problem,omitempty" doc:"Why it has ended early, or does not continue now."`
}

// Adopt begins to adopt a queue: each message is stored, parked, and then acknowledged. The replica
// that leads does it, also after a restart.
func (a *Actions) Adopt(ctx context.Context, by auth.Caller, r AdoptRequest) (Adoption, error) {
	preset, err := a.checkAdopt(by, "adopt", r)
	if err != nil {
		return Adoption{}, err
	}
	if err := a.settings.Acquire(ctx, 1); err != nil {
		return Adoption{}, err
	}
	defer a.settings.Release(1)
	all, err := retry.Adoptions(ctx, a.Store)
	if err != nil {
		return Adoption{}, err
	}
	if was, is := all[r.Queue]; is && was.State.Ended.IsZero() {
		return Adoption{}, hint.Errorf("see redrive adopt --list, or stop it by redrive adopt "+r.Queue+" --stop", "%w: the queue %q is being adopted already, by %s", inspect.ErrPrecondition, r.Queue, was.Order.By)
	}
	at, err := a.Inspect.AtBroker(ctx, r.Queue)
	switch {
	case err == nil && !at.Exists:
		return Adoption{}, fmt.Errorf("%w: RabbitMQ has no queue %q", inspect.ErrNotFound, r.Queue)
	case err == nil && at.Kind == "stream":
		return Adoption{}, fmt.Errorf("%w: the queue %q is a stream, which keeps what was consumed", inspect.ErrPrecondition, r.Queue)
	}
	end, err := a.Begin(by, "adopt", r.Queue, 0, r.Reason)
	if err != nil {
		return Adoption{}, err
	}
	o := retry.AdoptOrder{Queue: r.Queue, Preset: preset, Follow: r.Follow, Rate: r.Rate, By: by.Name, Since: a.now().UTC().Truncate(time.Microsecond)}
	err = retry.OrderAdoption(context.WithoutCancel(ctx), a.Store, o)
	end(err, 0)
	return adoption(retry.AdoptStatus{Order: o}), err
}

// stopWithin is how long the replica that leads may take to finish what it has begun.
const stopWithin = 15 * time.Second

// StopAdopting ends the adoption of a queue, and returns when it has ended. What was adopted stays.
func (a *Actions) StopAdopting(ctx context.Context, by auth.Caller, queue, reason string) error {
	if _, err := a.checkAdopt(by, "stop adopting", AdoptRequest{Queue: queue}); err != nil {
		return err
	}
	all, err := retry.Adoptions(ctx, a.Store)
	if err != nil {
		return err
	}
	if _, is := all[queue]; !is {
		return fmt.Errorf("%w: the queue %q is not adopted", inspect.ErrNotFound, queue)
	}
	end, err := a.Begin(by, "stop adopting", queue, 0, reason)
	if err != nil {
		return err
	}
	err = retry.EndAdoption(context.WithoutCancel(ctx), a.Store, queue)
	end(err, 0)
	for deadline := a.now().Add(stopWithin); err == nil; {
		var ended bool
		if ended, err = retry.AdoptionEnded(ctx, a.Store, queue); ended {
			return nil
		}
		if err == nil && a.now().After(deadline) {
			err = fmt.Errorf("%w: the adoption of %q is to end, and has not ended yet", inspect.ErrPrecondition, queue)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return err
}

// Adoptions are the queues that are adopted or were, as far as the caller sees them, by name.
func (a *Actions) Adoptions(ctx context.Context, by auth.Caller) ([]Adoption, error) {
	if err := by.MaySee(auth.Viewer); err != nil {
		return nil, err
	}
	all, err := retry.Adoptions(ctx, a.Store)
	shown := []Adoption{}
	for queue, s := range all {
		if by.Sees(queue) {
			shown = append(shown, adoption(s))
		}
	}
	slices.SortFunc(shown, func(a, b Adoption) int { return strings.Compare(a.Queue, b.Queue) })
	return shown, err
}

func adoption(s retry.AdoptStatus) Adoption {
	return Adoption{Queue: s.Order.Queue, Preset: s.Order.Preset, Follow: s.Order.Follow, Rate: s.Order.Rate, By: s.Order.By, Since: s.Order.Since,
		Adopted: s.Progress.Count, Left: s.State.Left, Last: given(s.Progress.Last), Ended: given(s.State.Ended), Problem: s.State.Problem}
}

func given(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// checkAdopt checks the caller and the queue, and returns the framework of the preset.
func (a *Actions) checkAdopt(by auth.Caller, did string, r AdoptRequest) (framework string, err error) {
	if err := a.Permit(by, auth.Operator, did, r.Queue, r.Queue); err != nil {
		return "", err
	}
	switch {
	case r.Queue == "" || len(r.Queue) > longestName || !utf8.ValidString(r.Queue):
		return "", fmt.Errorf("%w: %.100q is not the name of a queue", inspect.ErrInvalid, r.Queue)
	case wire.OwnQueue(r.Queue):
		return "", fmt.Errorf("%w: the queue %q is Redrive's own", inspect.ErrInvalid, r.Queue)
	}
	return Preset(r.Preset)
}

// Presets are the names of the frameworks that adopt knows, as it takes them.
func Presets() (all []string) {
	for _, name := range frameworks.Names() {
		all = append(all, presetOf(name))
	}
	return append(all, retry.NoFramework)
}

func presetOf(framework string) string {
	return strings.ReplaceAll(strings.ToLower(framework), " ", "-")
}

// Preset returns the framework that a name of Presets stands for; "": any.
func Preset(name string) (framework string, err error) {
	if name == retry.AnyFramework || name == retry.NoFramework {
		return name, nil
	}
	for _, f := range frameworks.Names() {
		if presetOf(f) == presetOf(name) {
			return f, nil
		}
	}
	return "", fmt.Errorf("%w: the preset %.40q: expected %s", inspect.ErrInvalid, name, strings.Join(Presets(), ", "))
}
