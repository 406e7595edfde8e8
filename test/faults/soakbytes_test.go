package faults_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/authority"
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
				p := r.part(t, fmt.Sprintf("RabbitMQ %s, %s", b.Version, how), 0)
				cutAtEachByte(t, p, func(t *testing.T) *byteCuts {
					v := brokertest.NewVHost(t, b)
					between := brokertest.NewProxy(t, v)
					return &byteCuts{Proxy: between.Proxy, p: newProcess(t, between.At(v.ServiceURL(brokertest.Works("orders")))), l: p.of(t, newTally(t, v, "orders")), connecting: connecting, each: connecting}
				})
			})
		}
	}
}

// soakRedisBytes is soakBytes of the connections to Redis.
func soakRedisBytes(t *testing.T, r *soakRow) { r.bytesOfRedis(t, false, "") }

// soakRedisConnecting is soakConnecting of those, plain and by TLS.
func soakRedisConnecting(t *testing.T, r *soakRow) { r.bytesOfRedis(t, true, "", " by TLS") }

func (r *soakRow) bytesOfRedis(t *testing.T, connecting bool, hows ...string) {
	eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
		for _, how := range hows {
			t.Run(cmp.Or(strings.TrimSpace(how), "plain"), func(t *testing.T) {
				t.Parallel()
				o := o // "plain" runs beside it
				if how != "" {
					o.TLS = identity(t, v.CA(t)) // or it is not run
				}
				p := r.part(t, fmt.Sprintf("%s%s, RabbitMQ %s", o.Name(), how, v.Version), 0)
				cutAtEachByte(t, p, func(t *testing.T) *byteCuts {
					server := redisnode.New(t, o)
					addr, scheme := server.Addr(), "redis"
					if o.TLS != nil {
						addr, scheme = server.TLSAddr(), "rediss"
					}
					between := proxy.New(t, addr)
					v := brokertest.NewVHost(t, v.Broker)
					return &byteCuts{Proxy: between, p: replicas(t, v, scheme+"://"+between.Addr(), synced, shortLease)[0], l: p.of(t, newTally(t, v, "orders")), connecting: connecting}
				})
			})
		}
	})
}

// identity is who a server on loopback is, by the authority of the brokers, which the service
// trusts as well.
func identity(t *testing.T, ca *authority.Authority) *redisnode.Identity {
	t.Helper()
	cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	must(t, ca.Issue(authority.Leaf{User: "redis", Hosts: []string{"127.0.0.1", "localhost"}}, cert, key))
	var id redisnode.Identity
	var err error
	id.Cert, err = os.ReadFile(cert)
	must(t, err)
	id.Key, err = os.ReadFile(key)
	must(t, err)
	return &id
}

// byteCuts is a service behind a proxy that cuts its connections.
type byteCuts struct {
	*proxy.Proxy
	p *process
	l *tally
	// connecting is whether the service has no connection when a message fails, so that its
	// way begins with connecting.
	connecting bool
	// each is whether each connection is then cut at its own byte, and not all of them when so many
	// bytes have passed of all together. The service always has as many connections.
	each        bool
	connections int
	inARow      int // cuts since all messages were done
}

// cutAtEachByte measures how many bytes a message's way has, and then cuts at each in turn,
// with several services at once.
func cutAtEachByte(t *testing.T, p *soakPart, prepare func(*testing.T) *byteCuts) {
	if p.isMet() {
		return
	}
	var todo places
	ok := t.Run("measure", func(t *testing.T) {
		c := prepare(t)
		c.start(t)
		todo = c.measure(t)
	})
	if !ok || todo.size() == 0 {
		t.Error("it is not known how many bytes a message's way has")
		return
	}
	if p.CutAt == nil {
		p.CutAt = &placeSet{}
	}
	todo.done = p.CutAt
	p.Goal, p.Done = todo.count()
	services, most := 8, p.Goal
	if *soakBudget == 0 {
		services, most = 1, 4
	}
	missed := 0
	take := func() (place, bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if todo.taken == most || time.Now().After(p.until) && *soakBudget > 0 {
			return place{}, false
		}
		return todo.next()
	}
	t.Cleanup(func() { // when the services have ended
		if p.Note = ""; missed > 0 {
			p.Note = fmt.Sprintf("%d of the places came too late on the message's way to be reached.", missed)
		}
	})
	for n := range services {
		t.Run(fmt.Sprint("service ", n+1), func(t *testing.T) {
			t.Parallel()
			c := prepare(t)
			c.start(t)
			for at, more := take(); more; at, more = take() {
				cut := false
				for tries := 0; tries < 3 && !cut; tries++ { // a way can be some bytes shorter than another
					cut = c.cut(at, todo.cutsAt(at))
				}
				p.mu.Lock()
				if cut {
					p.Done += todo.cutsAt(at)
					p.CutAt.add(at)
				} else {
					missed++
				}
				p.mu.Unlock()
			}
			c.finish()
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
	if c.each {
		c.connections = c.Connections()
	}
}

// settled is long enough for what follows a message's acknowledgement: the confirm and the
// deletion.
func (c *byteCuts) settled() { <-time.After(300 * time.Millisecond) }

// measure is how many bytes pass each way, the least of some messages; where each connection is cut
// at its own byte, of the longest.
func (c *byteCuts) measure(t *testing.T) (p places) {
	t.Helper()
	const times = 4
	var ways, connecting [times][]proxy.Bytes
	for i := range times {
		if c.each {
			connecting[i] = c.connect()
		}
		var from, to proxy.Bytes
		passed := func() []proxy.Bytes {
			to.ToServer, to.ToClient = c.Passed()
			return []proxy.Bytes{{ToServer: to.ToServer - from.ToServer, ToClient: to.ToClient - from.ToClient}}
		}
		id := c.send(func() {
			if from.ToServer, from.ToClient = c.Passed(); c.each {
				passed = c.Admit(proxy.NoLimit)
			}
		})
		c.l.awaitMessage(id, acknowledgedWithin)
		c.p.waitReady()
		c.settled()
		ways[i] = passed()
	}
	toServer, toClient := least(ways[:])
	p = places{toServer: toServer[0], toClient: toClient[0]}
	if c.each {
		p.connections = map[bool][]int64{}
		p.connections[true], p.connections[false] = least(connecting[:])
	}
	t.Logf("%d bytes to the server, %d to the client; connecting %v", p.toServer, p.toClient, p.connections)
	return p
}

// connect has the service connect again while no message is on its way, and is how many bytes that
// took of each connection.
func (c *byteCuts) connect() []proxy.Bytes {
	c.Gather()
	c.l.await(time.Millisecond, acknowledgedWithin, func() bool { return c.Gathered() >= c.connections })
	passed := c.Admit(proxy.NoLimit)
	c.p.waitReady()
	return passed()
}

// least are the bytes each way, those of the longest connection first, as they are at least.
func least(times [][]proxy.Bytes) (toServer, toClient []int64) {
	for i, all := range times {
		var s, k []int64
		for _, c := range all {
			s, k = append(s, c.ToServer), append(k, c.ToClient)
		}
		slices.SortFunc(s, func(a, b int64) int { return cmp.Compare(b, a) })
		slices.SortFunc(k, func(a, b int64) int { return cmp.Compare(b, a) })
		if i == 0 {
			toServer, toClient = s, k
		}
		for i := range min(len(s), len(toServer)) {
			toServer[i], toClient[i] = min(toServer[i], s[i]), min(toClient[i], k[i])
		}
	}
	return toServer, toClient
}

// send begins a message's way: from when begin is called the service does what it needs.
func (c *byteCuts) send(begin func()) (id string) {
	if !c.connecting {
		begin()
		return c.l.publishOne()
	}
	c.Gather()
	id = c.l.publishOne()
	c.l.await(time.Millisecond, acknowledgedWithin, func() bool { return c.l.hasFailed(id) && c.Gathered() >= c.connections })
	begin()
	if !c.each {
		c.Open()
	}
	return id
}

// mostInARow is how often a service that connects is cut, each time with another message, until it
// is let be and all messages are done.
const mostInARow = 6

// cut publishes a message, cuts the service's connections at a place, so many at least, and waits
// until the message is done, or until the cut where the next one follows at once. It tells whether
// they were cut.
func (c *byteCuts) cut(at place, connections int) bool {
	if !c.connecting || c.inARow == mostInARow {
		c.finish()
	}
	c.inARow++
	cuts := c.Cuts() + connections
	isCut := func() bool { return c.Cuts() >= cuts }
	c.l.during(func() {
		id := c.send(func() { c.cutAt(at) })
		begun := time.Now()
		c.l.await(5*time.Millisecond, acknowledgedWithin, func() bool {
			return c.connecting && isCut() || c.l.isAcknowledged(id) || c.each && time.Since(begun) > 10*time.Second
		})
		for n := 0; n < 30 && !isCut(); n++ {
			<-time.After(10 * time.Millisecond)
		}
		if c.each { // or the others would be cut later
			c.Gather()
		} else if !isCut() {
			c.CutToServerAfter(-1)
			c.CutToClientAfter(-1)
		}
	})
	return isCut()
}

// cutAt has the connections cut.
func (c *byteCuts) cutAt(at place) {
	switch {
	case c.each && at.toServer:
		c.Admit(proxy.Bytes{ToServer: at.bytes, ToClient: -1})
	case c.each:
		c.Admit(proxy.Bytes{ToServer: -1, ToClient: at.bytes})
	case at.toServer:
		c.CutToServerAfter(at.bytes)
	default:
		c.CutToClientAfter(at.bytes)
	}
	if c.connecting && !c.each {
		c.GatherAtCut()
	}
}

// finish lets the service connect, and waits until all messages are done.
func (c *byteCuts) finish() {
	c.Open()
	c.l.awaitAcknowledged(acknowledgedWithin)
	c.p.waitReady()
	if c.connecting {
		c.settled()
	}
	c.inARow = 0
}

// fewCopies holds each message to what its own cut explains, and, where it came again after
// others had begun, as on a machine with much else to do, to what these explain too.
func (c *byteCuts) fewCopies(t *testing.T) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	for key, arrivals := range c.l.seen {
		cuts, last := 0, arrivals[len(arrivals)-1]
		for _, f := range c.l.faults {
			if f.from.Before(last) && !f.to.Before(c.l.failed[key]) {
				cuts++
			}
		}
		if len(arrivals) > 1+maxCopies*max(1, cuts) {
			t.Errorf("%s failed at %s and came %d times over %d cuts: %s", key, c.l.failed[key].Format(time.StampMilli), len(arrivals), cuts, arrivals)
			c.l.sum.Unexplained++
		}
	}
}
