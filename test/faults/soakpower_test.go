package faults_test

import (
	"context"
	"iter"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/server"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// Power cuts of the machine that the service runs on, 200 in all.
func soakPower(t *testing.T, r *soakRow) {
	r.onEachBroker(t, "messages on disk", 200, func(t *testing.T, b brokertest.Broker, p *soakPart) {
		cuttingPower(t, p.newTally(t, brokertest.NewVHost(t, b)), p.faults(20))
	})
}

// cuttingPower cuts the power of a service so often while messages of a tally fail and come
// back.
func cuttingPower(t *testing.T, l *tally, cuts iter.Seq[int]) {
	m := newMachine(t, l.v)
	m.start()
	l.inTest = func() string { return (&process{t: t, listen: m.service.Addr()}).cli("queues") }
	m.waitReady() // until the exchange is there RabbitMQ drops what is dead-lettered to it
	consuming(t, l)
	for range cuts {
		l.publish(150)
		// Any moment will do: while it opens, connects, stores, or retries.
		<-time.After(time.Duration(m.random.IntN(600)) * time.Millisecond)
		l.during(m.cutPower)
		m.start()
	}
	l.awaitAcknowledged(acknowledgedWithin)
	l.during(m.cutPower)
	m.start()
	l.publish(300) // what fails only now comes once, though it has just started after a cut
	l.awaitAcknowledged(acknowledgedWithin)
	m.waitReady()
	t.Log((&process{t: t, listen: m.service.Addr()}).cli("ledger", "--recount"))
	l.account()
}

// machine runs the service within this process. Its store is on a disk in memory that knows
// what was synced; RabbitMQ is on another machine.
type machine struct {
	t      *testing.T
	v      *brokertest.VHost
	url    string
	random *rand.Rand
	disk   *vfs.MemFS
	log    brokertest.Output
	dying  sync.WaitGroup

	network *brokertest.Proxy
	service *server.Service
	stop    context.CancelFunc
	ended   chan error
}

func newMachine(t *testing.T, v *brokertest.VHost) *machine {
	t.Helper()
	m := &machine{t: t, v: v, random: random(t), disk: vfs.NewCrashableMem()}
	m.url = v.ServiceURL(brokertest.Works("orders"))
	t.Cleanup(func() {
		if m.service != nil {
			m.stop()
			if err := <-m.ended; err != nil {
				t.Errorf("the service ended with: %v", err)
			}
		}
		m.dying.Wait()
		if text := m.log.String(); t.Failed() {
			t.Logf("the service said:\n%s", text[max(0, len(text)-4000):])
		}
	})
	return m
}

func (m *machine) start() {
	m.t.Helper()
	m.network = brokertest.NewProxy(m.t, m.v)
	c, err := config.Parse("test.yaml", []byte(policies))
	must(m.t, err)
	// What is dying still has its audit log, which is not on that disk.
	c.Broker.URL, c.Store.Disk, c.Listen, c.Access.AuditFolder = m.network.At(m.url), "/data", "127.0.0.1:0", m.t.TempDir()
	s, err := server.New(c, server.Options{Version: "test", Log: slog.New(slog.NewTextHandler(&m.log, nil)), FS: roomy{m.disk}})
	must(m.t, err)
	ctx, stop := context.WithCancel(context.Background())
	m.service, m.stop, m.ended = s, stop, make(chan error, 1)
	go func(ended chan<- error) { ended <- s.Run(ctx) }(m.ended)
}

func (m *machine) waitReady() {
	m.t.Helper()
	brokertest.Eventually(m.t, "the service is ready", func() bool { return len(m.service.Problems()) == 0 })
}

// cutPower leaves of the disk what was synced, and by chance some of the rest, torn writes
// too. Nothing of the service reaches RabbitMQ from then on; it ends by itself, on a disk that no
// one reads.
func (m *machine) cutPower() {
	m.network.Refuse()
	m.disk = m.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: m.random.IntN(101), RNG: m.random})
	stop, ended := m.stop, m.ended
	m.service = nil
	m.dying.Go(func() {
		stop()
		<-ended // with whatever error
	})
}

// roomy is a disk in memory, which cannot tell how much room it has.
type roomy struct{ vfs.FS }

func (roomy) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 41}, nil
}
