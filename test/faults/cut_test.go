package faults_test

import (
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/proxy"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

func TestCuttingConnectionsLosesNothing(t *testing.T) {
	t.Parallel()
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		cuttingConnections(t, newTally(t, v, "orders"), times(5, 15))
	})
}

// cuttingConnections cuts the connections of a service to RabbitMQ so often, while many
// messages fail and come back.
func cuttingConnections(t *testing.T, l *tally, cuts iter.Seq[int]) {
	between := brokertest.NewProxy(t, l.v)
	p := newProcess(t, between.At(l.v.ServiceURL(brokertest.Works("orders"))))
	p.start()
	p.waitReady()
	consuming(t, l)
	random := random(t)
	for i := range cuts {
		if i%10 == 2 {
			l.settle(p)
		}
		l.during(func() { cutUnderLoad(l, between.Proxy, random.Int64N(100_000)) })
	}
	l.settle(p)
	l.publish(300) // what fails only now comes once
	l.awaitAcknowledged()
	l.account()
}

// cutUnderLoad publishes until so many bytes have passed and the connections are cut.
func cutUnderLoad(l *tally, between *proxy.Proxy, bytes int64) {
	l.test.Helper()
	cuts := between.Cuts()
	between.CutAfter(bytes)
	brokertest.Eventually(l.test, "the connections are cut", func() bool {
		l.publish(5)
		return between.Cuts() > cuts
	})
}

// The connections of a service are cut at any byte of connecting, of what it declares and
// asks before it consumes, and of a message's way until it is acknowledged.
func TestConnectingCutAtAnyByteLosesNothing(t *testing.T) {
	t.Parallel()
	t.Run("to RabbitMQ", func(t *testing.T) {
		t.Parallel()
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
			cuttingAtBytes(t, newTally(t, v, "orders"), times(6, 60))
		})
	})
	for _, secure := range []bool{false, true} {
		t.Run(map[bool]string{false: "to Redis", true: "to Redis by TLS"}[secure], func(t *testing.T) {
			t.Parallel()
			eachRedis(t, func(t *testing.T, v *brokertest.VHost, o redisnode.Options) {
				cuttingRedisAtBytes(t, newTally(t, v, "orders"), o, secure, times(6, 60))
			})
		})
	}
}

// cuttingAtBytes cuts each of the service's connections to RabbitMQ at the same byte of its own.
func cuttingAtBytes(t *testing.T, l *tally, cuts iter.Seq[int]) {
	between := brokertest.NewProxy(t, l.v)
	p := newProcess(t, between.At(l.v.ServiceURL(brokertest.Works("orders"))))
	c := &byteCuts{Proxy: between.Proxy, p: p, l: l, each: true}
	c.run(t, cuts)
}

// cuttingRedisAtBytes cuts all of its connections to Redis when so many bytes have passed.
func cuttingRedisAtBytes(t *testing.T, l *tally, o redisnode.Options, secure bool, cuts iter.Seq[int]) {
	if secure {
		o.TLS = identity(t, l.v.CA(t))
	}
	server := redisnode.New(t, o)
	addr, scheme := server.Addr(), "redis://"
	if secure {
		addr, scheme = server.TLSAddr(), "rediss://"
	}
	between := proxy.New(t, addr)
	p := replicas(t, l.v, 1, scheme+between.Addr(), synced, shortLease)[0]
	c := &byteCuts{Proxy: between, p: p, l: l}
	c.run(t, cuts)
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
	p           *process
	l           *tally
	each        bool // a limit is for each connection, of which there are always as many
	connections int
}

func (c *byteCuts) run(t *testing.T, cuts iter.Seq[int]) {
	c.l.failures = 1
	c.p.start()
	c.p.waitReady()
	consuming(t, c.l)
	c.l.publish(20) // what is done once, as a binding, is done
	c.l.settle(c.p)
	c.connections = 1
	if c.each {
		c.connections = c.Connections()
	}
	random, way := random(t), c.cut(t, proxy.NoLimit)
	t.Logf("connecting and a message take %d bytes to the server and %d to the client", way.ToServer, way.ToClient)
	for i := range cuts {
		if i%6 == 0 {
			c.settle()
		}
		at := proxy.Bytes{ToServer: -1, ToClient: -1}
		if random.IntN(2) == 0 {
			at.ToServer = between(random, way.ToServer)
		} else {
			at.ToClient = between(random, way.ToClient)
		}
		c.l.during(func() { c.cut(t, at) })
	}
	c.l.during(c.Cut) // a connection that has not reached its limit yet would be cut later
	c.settle()
	c.l.publish(20) // what fails only now comes once
	c.settle()
	c.p.balances()
	c.l.account()
}

// between is one of so many bytes.
func between(random *rand.Rand, bytes int64) int64 { return random.Int64N(max(1, bytes)) }

// settle lets the service connect until all messages are done.
func (c *byteCuts) settle() {
	c.Open()
	c.l.settle(c.p)
}

// cut lets the service connect while a message waits for it, and cuts what it connects when so
// many bytes have passed. It returns when that is cut, or the message done, with how many bytes
// have passed, of the longest connection where each has a limit.
func (c *byteCuts) cut(t *testing.T, at proxy.Bytes) (passed proxy.Bytes) {
	c.Gather()
	id := c.l.publishOne()
	c.l.await(time.Millisecond, func() bool { return c.l.hasFailed(id) && c.Gathered() >= c.connections })
	cuts := c.Cuts()
	var fromServer, fromClient int64
	each := func() []proxy.Bytes { return nil }
	if c.each {
		each = c.Admit(at)
	} else {
		fromServer, fromClient = c.Passed()
		c.CutToServerAfter(at.ToServer)
		c.CutToClientAfter(at.ToClient)
		c.Open()
	}
	begun := time.Now()
	c.l.await(5*time.Millisecond, func() bool {
		// Where all connections are shorter, the message may wait for one that is held.
		return c.Cuts() > cuts || c.l.isAcknowledged(id) || c.each && time.Since(begun) > 10*time.Second
	})
	t.Logf("%+v: cut %v, done %v", at, c.Cuts() > cuts, c.l.isAcknowledged(id))
	for _, one := range each() {
		passed.ToServer, passed.ToClient = max(passed.ToServer, one.ToServer), max(passed.ToClient, one.ToClient)
	}
	if !c.each {
		toServer, toClient := c.Passed()
		passed = proxy.Bytes{ToServer: toServer - fromServer, ToClient: toClient - fromClient}
		c.CutToServerAfter(-1)
		c.CutToClientAfter(-1)
	}
	return passed
}
