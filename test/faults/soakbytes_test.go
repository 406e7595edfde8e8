package faults_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/proxy"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// soakBytes cuts the connections of the service to RabbitMQ at each byte of a message's way
// from its failure to its return, on each version, plain and by TLS.
func soakBytes(t *testing.T, r *soakRow) { r.bytesOfRabbitMQ(t, false) }

// soakConnecting does the same from the first byte of connecting, with all that the service
// declares and asks.
func soakConnecting(t *testing.T, r *soakRow) { r.bytesOfRabbitMQ(t, true) }

func (r *soakRow) bytesOfRabbitMQ(t *testing.T, connecting bool) {
	for _, b := range brokertest.All(t) {
		for _, how := range []string{"plain", "TLS"} {
			t.Run(fmt.Sprintf("RabbitMQ %s %s", b.Version, how), func(t *testing.T) {
				t.Parallel()
				b := b // "plain" runs beside it
				if how == "TLS" {
					b.CA(t) // or it is not run
					b.AMQP, b.Management = b.AMQPS, b.HTTPS
				}
				p := r.part(fmt.Sprintf("RabbitMQ %s, %s", b.Version, how), 0)
				cutAtEachByte(t, p, func(t *testing.T) *byteCuts {
					v := brokertest.NewVHost(t, b)
					between := brokertest.NewProxy(t, v)
					return &byteCuts{between.Proxy, newProcess(t, between.At(v.ServiceURL(brokertest.Works("orders")))), newTally(t, v, "orders"), connecting}
				})
			})
		}
	}
}

// soakRedisBytes is soakBytes of the connections to Redis.
func soakRedisBytes(t *testing.T, r *soakRow) { r.bytesOfRedis(t, false) }

// soakRedisConnecting is soakConnecting of those.
func soakRedisConnecting(t *testing.T, r *soakRow) { r.bytesOfRedis(t, true) }

func (r *soakRow) bytesOfRedis(t *testing.T, connecting bool) {
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		p := r.part(fmt.Sprintf("%s, RabbitMQ %s", o.Name(), v.Version), 0)
		cutAtEachByte(t, p, func(t *testing.T) *byteCuts {
			between := proxy.New(t, redisnode.New(t, o).Addr())
			v := brokertest.NewVHost(t, v.Broker)
			return &byteCuts{between, replicas(t, v, "redis://"+between.Addr(), synced, shortLease)[0], newTally(t, v, "orders"), connecting}
		})
	})
}

// byteCuts is a service behind a proxy that cuts its connections.
type byteCuts struct {
	*proxy.Proxy
	p *process
	l *tally
	// connecting is whether the service has no connection when a message fails, so that its
	// way begins with connecting.
	connecting bool
}

// place is where connections are cut: when so many bytes have passed one way since a message
// was published, of all connections together.
type place struct {
	toServer bool
	bytes    int64
}

// cutAtEachByte measures how many bytes a message's way has, and then cuts at each in turn,
// with several services at once.
func cutAtEachByte(t *testing.T, p *soakPart, prepare func(*testing.T) *byteCuts) {
	began := time.Now()
	var todo places
	ok := t.Run("measure", func(t *testing.T) {
		c := prepare(t)
		c.start(t)
		todo = c.measure(t)
	})
	if p.Goal = todo.size(); !ok || p.Goal == 0 {
		t.Error("it is not known how many bytes a message's way has")
		p.Failed = true
		return
	}
	services, most := 4, p.Goal
	if *soakBudget == 0 {
		services, most = 1, 4
	}
	var mu sync.Mutex
	missed := 0
	take := func() (place, bool) {
		mu.Lock()
		defer mu.Unlock()
		if todo.taken == most || time.Now().After(p.until) && *soakBudget > 0 {
			return place{}, false
		}
		return todo.next(), true
	}
	t.Cleanup(func() { // when the services have ended
		p.Seconds = time.Since(began).Seconds()
		if p.Failed = t.Failed(); missed > 0 {
			p.Note = fmt.Sprintf("%d of the places came too late on the message's way to be reached.", missed)
		}
	})
	for n := range services {
		t.Run(fmt.Sprint("service ", n+1), func(t *testing.T) {
			t.Parallel()
			c := prepare(t)
			t.Cleanup(func() {
				mu.Lock()
				defer mu.Unlock()
				p.add(c.l.result())
			})
			c.start(t)
			for at, more := take(); more; at, more = take() {
				cut := false
				for tries := 0; tries < 3 && !cut; tries++ { // a way can be some bytes shorter than another
					cut = c.cut(at)
				}
				mu.Lock()
				if cut {
					p.Done++
				} else {
					missed++
				}
				mu.Unlock()
			}
			c.p.waitReady()
			t.Log(c.p.cli("ledger", "--recount"))
			c.l.account()
			c.fewCopies(t)
		})
	}
}

func (c *byteCuts) start(t *testing.T) {
	c.l.failures = 1
	c.p.start()
	c.p.waitReady()
	consuming(t, c.l)
	c.l.publish(20) // what is done once, as a binding, is done
	c.l.awaitAcknowledged(acknowledgedWithin)
	c.settled()
}

// settled is long enough for what follows a message's acknowledgement: the confirm and the
// deletion.
func (c *byteCuts) settled() { <-time.After(300 * time.Millisecond) }

// measure is how many bytes pass each way, the least of some messages.
func (c *byteCuts) measure(t *testing.T) (all places) {
	t.Helper()
	for i := range 4 {
		var toServer, toClient int64
		c.send(func() { toServer, toClient = c.Passed() })
		c.l.awaitAcknowledged(acknowledgedWithin)
		c.p.waitReady()
		c.settled()
		s, k := c.Passed()
		if s, k = s-toServer, k-toClient; i == 0 {
			all.toServer, all.toClient = s, k
		}
		all.toServer, all.toClient = min(all.toServer, s), min(all.toClient, k)
	}
	t.Logf("%d bytes to the server, %d to the client", all.toServer, all.toClient)
	return all
}

// send begins a message's way: from when begin is called the service does what it needs.
func (c *byteCuts) send(begin func()) {
	if !c.connecting {
		begin()
		c.l.publish(1)
		return
	}
	allow := c.Refuse()
	failed := c.l.deliveries() + 1
	c.l.publish(1)
	for c.l.deliveries() < failed {
		<-time.After(time.Millisecond)
	}
	begin()
	allow()
}

// cut publishes a message, cuts all connections of the service at a place, and waits until
// the message is done. It tells whether they were cut.
func (c *byteCuts) cut(at place) bool {
	c.p.waitReady()
	cuts := c.Cuts()
	c.l.during(func() {
		after := c.CutToClientAfter
		if at.toServer {
			after = c.CutToServerAfter
		}
		c.send(func() { after(at.bytes) })
		c.l.awaitAcknowledged(acknowledgedWithin)
		for range 30 {
			if c.Cuts() > cuts {
				return
			}
			<-time.After(10 * time.Millisecond)
		}
		after(-1)
	})
	return c.Cuts() > cuts
}

// fewCopies holds each message to what its own cut explains.
func (c *byteCuts) fewCopies(t *testing.T) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	for key, arrivals := range c.l.seen {
		if len(arrivals) > 1+maxCopies {
			t.Errorf("%s came %d times over one cut", key, len(arrivals))
			c.l.sum.Unexplained++
		}
	}
}

// places are those where connections are cut, in an order in which any number of them is
// spread over all.
type places struct {
	toServer, toClient int64
	taken              int
}

func (p *places) size() int { return int(p.toServer + p.toClient) }

func (p *places) next() place {
	all := p.size()
	step := all*618/1000 + 1
	for gcd(step, all) != 1 {
		step++
	}
	at := int64(p.taken * step % all)
	p.taken++
	if at < p.toServer {
		return place{true, at}
	}
	return place{false, at - p.toServer}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Each place is taken once, and some of them are spread over all.
func TestEachPlaceIsTakenOnce(t *testing.T) {
	for _, all := range []places{{toServer: 3, toClient: 4}, {toServer: 700, toClient: 300}, {toServer: 1, toClient: 0}, {toServer: 1021, toClient: 2}} {
		seen, size := map[place]bool{}, all.size()
		for range size {
			at := all.next()
			if limit := map[bool]int64{true: all.toServer, false: all.toClient}[at.toServer]; at.bytes < 0 || at.bytes >= limit {
				t.Errorf("%+v is none of %+v", at, all)
			}
			seen[at] = true
			if len(seen) == 10 && size == 1000 {
				parts := map[int64]bool{}
				for at := range seen {
					if !at.toServer {
						at.bytes += all.toServer
					}
					parts[at.bytes/125] = true
				}
				if len(parts) < 7 {
					t.Errorf("the first ten of 1,000 places are in %d of 8 parts", len(parts))
				}
			}
		}
		if len(seen) != size {
			t.Errorf("%d of %d places were taken", len(seen), size)
		}
	}
}
