package brokertest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// Packages run side by side, each with many parallel tests that mostly wait. What keeps RabbitMQ
// from being too busy to answer is one limit for the machine: a test takes one slot for a virtual
// host, two for a node of its own, and four for a cluster.
var slots = 8 * max(2, runtime.NumCPU())

// takeSlots waits until n slots are free, and frees them when the test ends. Call it once in a test,
// after t.Parallel. A slot is a locked file, which the end of a process frees too.
func takeSlots(t testing.TB, n int) {
	t.Helper()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("redrive-slots-%d", os.Getuid()))
	must(t, os.MkdirAll(dir, 0o700))
	lock := func(name string, how int) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
		must(t, err)
		for {
			switch err := syscall.Flock(int(f.Fd()), how); err {
			case nil:
				return f
			case syscall.EINTR:
			case syscall.EWOULDBLOCK:
				_ = f.Close()
				return nil
			default:
				t.Fatalf("locking %q: %v", f.Name(), err)
			}
		}
	}
	// A test that needs many slots is not overtaken by those that need one.
	queue := lock("queue", syscall.LOCK_EX)
	defer queue.Close()
	for taken := 0; taken < n; time.Sleep(10 * time.Millisecond) {
		for i := 0; i < slots && taken < n; i++ {
			if f := lock(fmt.Sprint(i), syscall.LOCK_EX|syscall.LOCK_NB); f != nil {
				t.Cleanup(func() { _ = f.Close() })
				taken++
			}
		}
	}
}
