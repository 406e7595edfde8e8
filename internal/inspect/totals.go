package inspect

import (
	"context"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
)

// Totals are the numbers of one moment.
type Totals struct {
	At         time.Time             `json:"at"`
	Waiting    int64                 `json:"waiting"`
	Parked     int64                 `json:"parked"`
	Discarded  int64                 `json:"discarded"`
	PerMinute  Flow                  `json:"per_minute"`
	Conditions []condition.Condition `json:"conditions"`
}

// Totals returns the numbers of now, of the queues that the caller sees.
func (in *Inspector) Totals(ctx context.Context, by auth.Caller) (Totals, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return Totals{}, err
	}
	counts, err := in.counts(ctx)
	if err != nil {
		return Totals{}, err
	}
	t := Totals{At: in.Now(), Conditions: in.ConditionsFor(by)}
	for _, n := range counts {
		if by.Sees(n.Queue) {
			t.Waiting += n.Waiting
			t.Parked += n.Parked
			t.Discarded += n.Discarded
		}
	}
	if in.Activity != nil {
		t.PerMinute = in.perMinute(by, t.At)
	}
	return t, nil
}

// Failures is how many messages failed since the service started, in the queues that the
// caller may see.
func (in *Inspector) Failures(by auth.Caller) int64 {
	if in.Activity == nil {
		return 0
	}
	return in.Activity.Failed(by.Sees)
}
