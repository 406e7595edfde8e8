package redrivetest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/redrivetest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// orders is the consumer of the program under test.
var orders = redrive.Consumer{
	Policy: policy.Policy{Attempts: 5, Backoff: policy.Exponential(time.Second, 3, 10*time.Minute)},
	Wait:   redrive.Levels(time.Second, 5*time.Second, 30*time.Second),
}

var errShop = errors.New("the shop is down")

func Example() {
	steps, err := redrivetest.Run(orders, errShop, redrive.RetryAfter(errShop, 20*time.Second), errShop,
		redrive.Park(errShop))
	if err != nil {
		fmt.Println(err)
	}
	for _, s := range steps {
		fmt.Printf("%2s: attempt %d %s", s.At, s.Attempt, s.Outcome)
		if s.Outcome == redrive.Retried {
			fmt.Printf(", again in %s", s.Delay)
		}
		fmt.Println()
	}
	// Output:
	// 0s: attempt 1 retried, again in 1s
	// 1s: attempt 2 retried, again in 30s
	// 31s: attempt 3 retried, again in 30s
	// 1m1s: attempt 4 parked
}

func TestRun(t *testing.T) {
	always := func(c redrive.Consumer) []redrivetest.Step {
		steps, err := redrivetest.Always(c, errShop)
		expect.NoError(t, err)
		return steps
	}
	s := always(orders)
	if len(s) != 5 || s[4].Outcome != redrive.Parked || s[4].Why == "" || s[4].At != 66*time.Second {
		t.Errorf("levels: %+v", s)
	}
	old := orders
	old.Policy.MaxAge = 10 * time.Second
	if s := always(old); len(s) != 3 || s[2].Outcome != redrive.Parked || !strings.Contains(s[2].Why, "max_age") {
		t.Errorf("with a largest age: %+v", s)
	}
	service := orders
	service.Wait = redrive.Service()
	if s := always(service); len(s) != 1 || s[0].Outcome != redrive.Retried {
		t.Errorf("the service: %+v", s)
	}
	jitter := orders
	jitter.Wait = redrive.Binary(time.Millisecond)
	if a, b := always(jitter), always(jitter); a[3] != b[3] || a[3].At == 13*time.Second {
		t.Errorf("jitter: %+v, and then %+v", a, b)
	}
	s, err := redrivetest.Run(orders, errShop, nil, errShop)
	if err != nil || len(s) != 2 || s[1].Outcome != redrive.Succeeded {
		t.Errorf("a success: %+v, %v", s, err)
	}
	long := orders
	long.Policy.Backoff = policy.Fixed(time.Hour)
	if _, err := redrivetest.Run(long, errShop); err == nil {
		t.Error("a policy that the way cannot keep is taken")
	}
}
