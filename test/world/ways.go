package world

import (
	"math/rand/v2"
	"time"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/delay/binary"
	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/policy"
)

// drawWays has the messages of some queues wait in RabbitMQ, as far as their policies can be kept
// there.
func (s *scenario) drawWays(r *rand.Rand) {
	some := r.IntN(3) > 0
	for _, q := range s.queues {
		of := r.Perm(len(newWays))
		if chosen := r.IntN(3) > 0; !some || !chosen {
			continue
		}
		for _, i := range of {
			p, way := q.policy, newWays[i](&q.policy)
			if !way.Limits().Spreads() {
				p.Jitter = policy.None
			}
			widest := p
			widest.Attempts = mostAttempts // a reload that the way cannot keep is refused
			if way.Limits().Check(&widest) == nil {
				q.policy, q.way = p, way
				break
			}
		}
	}
}

// newWays make those that the config has, but for the plugin's.
var newWays = []func(*policy.Policy) delay.Way{
	func(*policy.Policy) delay.Way { return must(ttlqueue.NewLevels(ttlqueue.Quorum)) },
	func(p *policy.Policy) delay.Way {
		return must(ttlqueue.NewFixed(ttlqueue.Quorum, p.Backoff.Delay(1)))
	},
	func(*policy.Policy) delay.Way { return must(ttlqueue.NewDynamic(100 * time.Millisecond)) },
	func(*policy.Policy) delay.Way { return ttlqueue.NewMessageTTL(ttlqueue.Quorum, false) },
	func(*policy.Policy) delay.Way { return must(binary.New(time.Second)) },
}

func must[W delay.Way](way W, err error) delay.Way {
	if err != nil {
		panic(err) // its arguments are constants, or were checked
	}
	return way
}
