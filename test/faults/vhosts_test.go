package faults_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// Two virtual hosts have queues of one name and messages of the same ids and bodies,
// and the service of both is killed: each message is in its own, and accounted for.
func TestKillingTheServiceOfTwoVirtualHostsLosesNothing(t *testing.T) {
	const kills = 8
	brokertest.Each(t, func(t *testing.T, first *brokertest.VHost) {
		second := brokertest.NewVHost(t, first.Broker)
		works := brokertest.Works("orders")
		p := newProcess(t, first.ServiceURL(works))
		second.ServiceURL(works)
		password := filepath.Join(t.TempDir(), "password")
		if err := os.WriteFile(password, []byte(brokertest.ServicePassword), 0o600); err != nil {
			t.Fatal(err)
		}
		p.configure(fmt.Sprintf("broker: {vhosts: [{name: %s, user: %s, password_file: %s}]}\n%s", second.Name, second.ServiceUser(), password, policies))
		both := []*tally{newTally(t, first, "orders"), newTally(t, second, "orders")}
		p.start()
		p.waitReady() // until the exchanges are there RabbitMQ drops what is dead-lettered to them
		p.kill()
		for _, l := range both {
			consuming(t, l)
		}
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for range kills {
			p.start()
			for _, l := range both {
				l.publish(150)
			}
			<-time.After(time.Duration(random.IntN(600)) * time.Millisecond)
			both[0].during(p.kill)
			both[1].faults = both[0].faults
		}
		p.start()
		for _, l := range both {
			l.awaitAcknowledged(acknowledgedWithin)
		}
		p.waitReady()
		for _, l := range both {
			// Its own account of them balances, or this fails.
			t.Log(p.cli("ledger", "--recount", "--vhost", l.v.Name))
		}
		if err := p.term(); err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
		for _, l := range both {
			l.account()
		}
	})
}
