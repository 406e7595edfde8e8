package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// kills of the service during an operation.
const kills = 5

// killedReplay is the account of an operation whose service was killed.
type killedReplay struct {
	Kills      int     `json:"kills"`
	Running    int     `json:"kills_before_its_end"`
	Seconds    float64 `json:"s"`
	Outcomes   int     `json:"outcomes"`
	Done       int     `json:"done"`
	Twice      int     `json:"twice"`   // messages that are in its account more than once
	Missing    int     `json:"missing"` // and not at all
	Lost       int     `json:"lost"`    // did not come to the consumer
	Duplicates int     `json:"duplicates"`
	Unmarked   int     `json:"unmarked"` // duplicates with another id or attempt than the first
}

// wrong: what was confirmed by RabbitMQ just before a kill comes twice, which its
// marks tell; nothing else may differ.
func (k *killedReplay) wrong() bool {
	return k.Outcomes != *replayed || k.Done != k.Outcomes || k.Twice+k.Missing+k.Lost+k.Unmarked > 0
}

func (k *killedReplay) String() string {
	return fmt.Sprintf("%d outcomes of %d messages, %d done, %d twice, %d missing; at the consumer %d lost, %d duplicates, %d of them without their first's marks",
		k.Outcomes, *replayed, k.Done, k.Twice, k.Missing, k.Lost, k.Duplicates, k.Unmarked)
}

func killReplay(ctx context.Context, b brokertest.Broker, kind string) (*killedReplay, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	v, remove, err := newVHost(ctx, b, kind)
	if err != nil {
		return nil, err
	}
	defer remove()
	s, err := parkedService(ctx, v)
	if err != nil {
		return nil, err
	}
	defer s.remove()
	in := arrive(ctx, v.url, *replayed)
	k := &killedReplay{Kills: kills}
	err = k.run(ctx, s, in)
	if err = errors.Join(err, in.stop()); err != nil {
		return nil, err
	}
	k.Lost, k.Duplicates, k.Unmarked = in.left, in.duplicates, in.unmarked
	return k, nil
}

func (k *killedReplay) run(ctx context.Context, s *service, in *arrivals) error {
	o, _, began, err := s.replayAll(ctx)
	if err != nil {
		return err
	}
	points := make([]int64, kills) // how far the operation is
	for i := range points {
		points[i] = rand.Int64N(int64(*replayed))
	}
	slices.Sort(points)
	for _, point := range points {
		for {
			now, err := httpapi.Client{Addr: s.listen}.Operation(ctx, o.ID)
			if err != nil {
				return err
			}
			if now.Done >= point {
				if now.Ended == nil {
					k.Running++
				}
				break
			}
			if err := pause(ctx, 5*time.Millisecond); err != nil {
				return err
			}
		}
		// Not just at the end of a step.
		if err := pause(ctx, time.Duration(rand.Int64N(int64(30*time.Millisecond)))); err != nil {
			return err
		}
		s.end(syscall.SIGKILL)
		if err := s.start(ctx); err != nil {
			return err
		}
	}
	if err := errors.Join(s.ended(ctx, o.ID), in.wait(ctx)); err != nil {
		return err
	}
	k.Seconds = round(time.Since(began).Seconds())
	if err := in.quiet(ctx); err != nil { // duplicates may be on their way
		return err
	}
	return k.count(ctx, s, o.ID)
}

// count reads the operation's account.
func (k *killedReplay) count(ctx context.Context, s *service, id string) error {
	times := map[string]int{}
	for after := ""; ; {
		page, err := httpapi.Client{Addr: s.listen}.Outcomes(ctx, id, after, 1000)
		if err != nil {
			return err
		}
		for _, o := range page.Outcomes {
			k.Outcomes++
			if times[o.Key]++; times[o.Key] == 2 {
				k.Twice++
			}
			if o.Outcome == "done" {
				k.Done++
			}
		}
		if after = page.After; after == "" {
			break
		}
	}
	k.Missing = *replayed - len(times)
	o, err := httpapi.Client{Addr: s.listen}.Operation(ctx, id)
	if err == nil && (o.State != operations.Finished || o.Done != int64(k.Done)) {
		err = fmt.Errorf("the operation is %s with %d done, and its account has %d", o.State, o.Done, k.Done)
	}
	return err
}
