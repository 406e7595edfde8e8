package faults_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// With a full disk the intake stops and the messages stay in RabbitMQ; with room
// again it goes on by itself.
func TestAFullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	onASmallDisk(t, func(t *testing.T, v *brokertest.VHost, p *process, l *tally, disk string) {
		p.start()
		p.waitReady()
		consuming(t, l)
		l.publish(200)
		l.awaitAcknowledged(acknowledgedWithin)

		ballast := filepath.Join(disk, "ballast")
		fill(t, ballast, disk, 16<<20) // less than the reserve
		l.publish(300)
		brokertest.Eventually(t, "the service says that its disk is full", func() bool { return strings.Contains(p.readyz(), "the store is full") })
		brokertest.Eventually(t, "the messages are RabbitMQ's", func() bool { return v.Messages(wire.QueueIntake) >= 300 })
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		l.awaitAcknowledged(acknowledgedWithin)
		p.waitReady()
		l.account()
	})
}

// When somebody else takes the reserve too, to the last byte, the service may
// end. Whatever runs it starts it again, which fails until there is room.
func TestADiskFullToTheLastByteLosesNothing(t *testing.T) {
	t.Parallel()
	onASmallDisk(t, func(t *testing.T, v *brokertest.VHost, p *process, l *tally, disk string) {
		p.supervise()
		p.waitReady()
		consuming(t, l)
		l.publish(200)
		brokertest.Eventually(t, "some returned", func() bool { return l.acknowledged() > 50 })

		l.during(func() {
			ballast := filepath.Join(disk, "ballast")
			fill(t, ballast, disk, 0)
			l.publish(300)
			brokertest.Eventually(t, "the messages are RabbitMQ's", func() bool { return v.Messages(wire.QueueIntake) >= 300 })
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			p.waitReady()
		})
		l.awaitAcknowledged(acknowledgedWithin)
		p.waitReady()
		l.account()
	})
}

// onASmallDisk runs a test on each broker, with a service that is not started
// yet and keeps its data on a disk of 96 MiB, 32 of them in reserve.
func onASmallDisk(t *testing.T, do func(t *testing.T, v *brokertest.VHost, p *process, l *tally, disk string)) {
	if os.Getuid() != 0 {
		t.Skip("not run: mounting a small disk needs root")
	}
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		disk := t.TempDir()
		if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=96m"); err != nil {
			t.Fatalf("mounting a small disk: %v", err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		l := newTally(t, v, "orders")
		p := newProcess(t, v.ServiceURL(brokertest.Works("orders")))
		yaml := fmt.Sprintf("store: {disk: %s, reserve: 32MiB}\nlisten: %s\n%s\n", filepath.Join(disk, "data"), p.listen, policies)
		if err := os.WriteFile(p.config, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		do(t, v, p, l, disk)
	})
}

// fill leaves so many bytes free. The service writes meanwhile: what it takes between
// the look and the filling makes that fail, and it is tried again.
func fill(t *testing.T, file, disk string, leave int64) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 100 {
		var s syscall.Statfs_t
		if err := syscall.Statfs(disk, &s); err != nil {
			t.Fatal(err)
		}
		if err = syscall.Fallocate(int(f.Fd()), 0, 0, int64(s.Bavail)*s.Bsize-leave); !errors.Is(err, syscall.ENOSPC) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
