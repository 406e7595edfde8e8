package retry_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// recognizing is a store that recognizes a batch whose answer was lost, as Redis's does.
type recognizing struct {
	*memstore.Store
	lost map[[32]byte]bool // added, and not answered
	// answers are what becomes of the next batches: nil, store.ErrFull, which adds nothing, or another
	// error, which comes after they are added.
	answers []error
}

func (s *recognizing) Add(ctx context.Context, records []*store.Record) error {
	var answer error
	if len(s.answers) > 0 {
		answer, s.answers = s.answers[0], s.answers[1:]
	}
	of := store.HashOf(records)
	if errors.Is(answer, store.ErrFull) {
		return answer
	}
	if !s.lost[of] {
		if err := s.Store.Add(ctx, records); err != nil {
			return err
		}
	}
	if s.lost[of] = answer != nil; answer == nil {
		delete(s.lost, of)
	}
	return answer
}

var errNoAnswer = errors.New("the answer was lost")

// The store may have a batch that is passed again: it must recognize it, whatever has changed since.
func TestABatchThatMayBeStoredIsAddedAgainAsItWas(t *testing.T) {
	for name, answers := range map[string][]error{
		"at once":              {errNoAnswer, errNoAnswer},
		"in parts":             {store.ErrFull, errNoAnswer, nil, errNoAnswer, nil},
		"in parts of parts":    {store.ErrFull, store.ErrFull, nil, errNoAnswer},
		"and then not at once": {store.ErrFull, errNoAnswer, errNoAnswer, errNoAnswer},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &recognizing{Store: memstore.New(), lost: map[[32]byte]bool{}, answers: answers}
			in := newIntake(s)
			rules := []policy.Policy{
				{Name: "p", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(time.Minute)},
				{Name: "p", Queues: []string{"*"}, Attempts: 1, Exhausted: policy.Exhausted{Action: policy.Discard}},
				{Name: "p", Queues: []string{"*"}, Attempts: 1},
			}
			discards := policy.Policy{Name: "d", Queues: []string{"dropped"}, Attempts: 1, Exhausted: policy.Exhausted{Action: policy.Discard}}
			batch := []wire.Delivery{deadLetter("q", "a"), deadLetter("q", "b"), deadLetter("dropped", "x"), deadLetter("q", "c"), deadLetter("q", "d")}
			for i, err := 0, errNoAnswer; err != nil; i++ {
				set := policy.Set{rules[i%len(rules)]}
				if i == 0 {
					set = append(policy.Set{discards}, set...)
				}
				in.SetRules(retry.Rules{Policies: set})
				err = in.Handle(t.Context(), batch)
				time.Sleep(time.Second)
			}
			if n := len(kept(t, s)); n != 4 {
				t.Errorf("%s: %d records of 4 messages are kept", name, n)
			}
		})
	}
}

// A message that was replayed fails as often as before, which is another failure: a store that took
// it for the first one would lose it.
func TestAFailureAfterAReplayIsAnotherOne(t *testing.T) {
	first := storetest.Waiting("q", 0, "a")
	again := *first
	again.FailedAt = first.FailedAt.Add(time.Millisecond)
	if store.HashOf([]*store.Record{first}) == store.HashOf([]*store.Record{&again}) {
		t.Error("both are the same batch")
	}
	other := *first
	other.ID = uuid.New()
	all := [][32]byte{store.HashOf([]*store.Record{first}), store.HashOf([]*store.Record{&other}), store.HashOf([]*store.Record{first, &other}), store.HashOf([]*store.Record{&other, first})}
	for i, h := range all {
		if slices.Index(all, h) != i {
			t.Errorf("batch %d is the same as another", i)
		}
	}
}
