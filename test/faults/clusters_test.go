package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// One of the two clusters of a service is killed and starts again, and is away when the service
// starts: the one of broker.url with RabbitMQ 3, that of an entry of vhosts with 4. The other's
// messages are retried meanwhile, each once, as if nothing had happened.
func TestAClusterThatIsAwayLosesNothingAndStopsNoOther(t *testing.T) {
	t.Parallel()
	brokertest.EachPrivate(t, "", func(t *testing.T, gone *brokertest.VHost, n *rabbitnode.Node) {
		s := newClustersStory(t, gone, n, !gone.Since4())
		s.killed()
		s.awayAtTheStart()
		s.settle()
	})
}

// clustersStory is a service of two clusters: a node of the test's own, which is killed, and a shared
// one of the other version.
type clustersStory struct {
	t            *testing.T
	p            *process
	n            *rabbitnode.Node
	gone, stays  *tally
	goneAs, upAs string // what the service calls their virtual hosts
}

func newClustersStory(t *testing.T, gone *brokertest.VHost, n *rabbitnode.Node, goneFirst bool) *clustersStory {
	stays := brokertest.NewVHost(t, otherThan(t, gone.Broker))
	s := &clustersStory{t: t, n: n, gone: newTally(t, gone, "orders"), stays: newTally(t, stays, "orders")}
	first, second := stays, gone
	s.upAs, s.goneAs = stays.Name, "else/where"
	if goneFirst {
		first, second = gone, stays
		s.upAs, s.goneAs = "else/where", gone.Name
	}
	works := brokertest.Works("orders")
	s.p = newProcess(t, first.ServiceURL(works))
	s.p.configure(fmt.Sprintf("broker:\n  management: '%s'\n  vhosts: [{name: else/where, vhost: '%s', url: '%s', management: '%s'}]\n%s",
		first.Management, second.Name, second.ServiceURL(works), second.Management, policies))
	s.p.start()
	s.p.waitReady()
	// See killingRabbitMQ: the node is to know its quorum queues after a kill.
	_, err := n.Eval(context.Background(), "[dets:sync(T) || T <- dets:all()].")
	must(t, err)
	consuming(t, s.gone)
	consuming(t, s.stays)
	return s
}

// otherThan is a shared broker, of another version where there is one.
func otherThan(t *testing.T, b brokertest.Broker) brokertest.Broker {
	all := brokertest.All(t)
	for _, other := range all {
		if other.Version != b.Version {
			return other
		}
	}
	return all[0]
}

// killed: the cluster is killed while messages of both fail, and starts again.
func (s *clustersStory) killed() {
	s.stays.publish(300)
	s.gone.publish(1000)
	brokertest.Eventually(s.t, "its first messages were retried", func() bool { return s.gone.deliveries() > 1100 })
	s.gone.during(func() {
		s.n.Kill()
		s.isAway()
		s.stays.publish(300)
		s.stays.awaitAcknowledged(acknowledgedWithin)
		s.isAway()
		restart(s.t, s.gone.v, s.n, "orders", wire.QueueIntake)
		s.p.waitReady()
	})
	s.gone.awaitAcknowledged(acknowledgedWithin)
}

// awayAtTheStart: messages of both wait, the cluster is killed, and the service stops and starts
// without it. Their pause ends while it is away.
func (s *clustersStory) awayAtTheStart() {
	const waiting = 200
	for _, l := range []*tally{s.gone, s.stays} {
		as := s.nameOf(l)
		s.p.cli("pause", "orders", "--vhost", as)
		l.publish(waiting)
		brokertest.Eventually(s.t, "all wait that were published to "+as, func() bool { return s.lines()[as].Waiting == waiting })
	}
	s.gone.during(func() {
		s.n.Kill()
		if err := s.p.term(); err != nil {
			s.t.Errorf("SIGTERM while a cluster is away: %v", err)
		}
		s.p.start()
		s.isAway()
		for _, as := range []string{s.goneAs, s.upAs} {
			s.p.cli("resume", "orders", "--vhost", as)
		}
		s.stays.publish(300)
		s.stays.awaitAcknowledged(acknowledgedWithin)
		s.isAway()
		if line := s.lines()[s.goneAs]; line.Waiting != waiting || line.Parked != 0 {
			s.t.Errorf("of the cluster that is away %d wait and %d are parked, want %d and none", line.Waiting, line.Parked, waiting)
		}
		restart(s.t, s.gone.v, s.n, "orders", wire.QueueIntake)
		s.p.waitReady()
	})
	s.gone.awaitAcknowledged(acknowledgedWithin)
}

// settle accounts for each message once all is well again.
func (s *clustersStory) settle() {
	for _, l := range []*tally{s.gone, s.stays} {
		l.publish(300) // what fails only now comes once
		l.awaitAcknowledged(acknowledgedWithin)
	}
	s.p.waitReady()
	for as, line := range s.lines() {
		if !line.Ready || line.Problem != "" || line.Waiting != 0 || line.Parked != 0 || line.Cluster == "" {
			s.t.Errorf("at the end %s is %+v", as, line)
		}
		// Its own account of them balances, or this fails.
		s.t.Log(s.p.cli("ledger", "--recount", "--vhost", as))
	}
	if err := s.p.term(); err != nil {
		s.t.Errorf("after SIGTERM: %v", err)
	}
	s.gone.account()
	s.stays.account() // no fault is recorded of it, so that nothing may come twice
}

func (s *clustersStory) nameOf(l *tally) string {
	if l == s.gone {
		return s.goneAs
	}
	return s.upAs
}

// lines is what `redrive status --all` says, by name.
func (s *clustersStory) lines() map[string]inspect.VHost {
	s.t.Helper()
	var all httpapi.VHostList
	must(s.t, json.Unmarshal([]byte(s.p.cli("status", "--all", "-o", "json")), &all))
	lines := map[string]inspect.VHost{}
	for _, line := range all.List {
		lines[line.Name] = line
	}
	return lines
}

// isAway waits until readiness, command line and page say which of the two is away, and that the
// other is not.
func (s *clustersStory) isAway() {
	s.t.Helper()
	brokertest.Eventually(s.t, "readiness says that "+s.goneAs+" is away, and "+s.upAs+" is ready", func() bool {
		all, text := s.get("/readyz")
		gone, _ := s.get(httpapi.Base(s.goneAs) + "/readyz")
		up, _ := s.get(httpapi.Base(s.upAs) + "/readyz")
		return all == http.StatusServiceUnavailable && gone == all && up == http.StatusOK &&
			strings.Contains(text, "virtual host "+s.goneAs+": intake: ") && !strings.Contains(text, "virtual host "+s.upAs+": ")
	})
	lines := s.lines()
	if gone, up := lines[s.goneAs], lines[s.upAs]; gone.Ready || !strings.HasPrefix(gone.Problem, "intake: ") || !up.Ready || up.Problem != "" {
		s.t.Errorf("of the one that is away status --all says %+v, and of the other %+v", gone, up)
	}
	_, page := s.get("/all")
	_, page, _ = strings.Cut(page, "<tbody>")
	for as, says := range map[string]string{s.goneAs: "not ready", s.upAs: ">ready<"} {
		_, row, _ := strings.Cut(page, "<bdi>"+as+"</bdi>")
		if row, _, _ = strings.Cut(row, "</tr>"); !strings.Contains(row, says) {
			s.t.Errorf("the page about all does not say %q of %s: %s", says, as, row)
		}
	}
}

func (s *clustersStory) get(path string) (int, string) {
	resp, err := http.Get("http://" + s.p.listen + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(s.t, err)
	return resp.StatusCode, string(text)
}
