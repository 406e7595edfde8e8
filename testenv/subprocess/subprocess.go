// Package subprocess runs processes that end when this one does, however that ends: each
// is a process group of its own, with a watchdog beside it that kills the group when
// this process dies without a word, and takes its folder away.
package subprocess

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// Process is a process group that this process owns. Its methods may be called at
// once, and on nil, where they do nothing.
type Process struct {
	group    int
	ended    chan struct{}
	watchdog io.WriteCloser
	watching *exec.Cmd
	kills    sync.Once
}

// Start starts a command, whose folder is removed when this process dies before Kill
// was called.
func Start(c *exec.Cmd, folder string) (*Process, error) {
	ownGroup(c)
	if err := c.Start(); err != nil {
		return nil, err
	}
	p := &Process{group: c.Process.Pid, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = c.Wait()
	}()
	// It reads a line when all is in order, and the end of its input when this
	// process died. (dash knows no `kill -9 --`.)
	p.watching = exec.Command("sh", "-c", `read line && exit; kill -s KILL -- "-$0" 2>/dev/null; rm -rf "$1"`, strconv.Itoa(p.group), folder)
	ownGroup(p.watching)
	in, err := p.watching.StdinPipe()
	if err == nil {
		err = p.watching.Start()
	}
	if err != nil {
		p.Kill()
		return nil, err
	}
	p.watchdog = in
	return p, nil
}

// Group is the id of the process group, all its helpers included.
func (p *Process) Group() int { return p.group }

// Ended is closed when the process that was started has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Signal sends a signal to all of the group.
func (p *Process) Signal(s syscall.Signal) error {
	if p == nil {
		return nil
	}
	return signalGroup(p.group, s)
}

// Pause stops all of the group where it is; Continue ends that.
func (p *Process) Pause() error    { return p.Signal(stop) }
func (p *Process) Continue() error { return p.Signal(goOn) }

// Kill ends it as a power cut would, and returns when it has ended.
func (p *Process) Kill() {
	if p == nil {
		return
	}
	p.kills.Do(func() {
		_ = signalGroup(p.group, syscall.SIGKILL)
		<-p.ended
		if p.watchdog != nil {
			_, _ = io.WriteString(p.watchdog, "\n")
			_ = p.watchdog.Close()
			_ = p.watching.Wait()
		}
	})
}

// InRoot is how to run a command inside a folder that has a whole system in it, with
// /proc in a mount namespace of its own, which is gone with the process. "" is this
// system.
func InRoot(root, name string, args ...string) (string, []string) {
	if root == "" {
		return name, args
	}
	namespace := []string{"--mount"}
	if os.Getuid() != 0 {
		namespace = append(namespace, "--map-root-user", "--fork", "--pid")
	}
	script := `mount -t proc proc "$0/proc" && exec chroot "$0" "$@"`
	return "unshare", append(append(namespace, "sh", "-c", script, root, name), args...)
}

// Installed is the folder that scripts/install installs into, for all clones: RabbitMQ 4 and Valkey
// in sid/, clients of other languages in clients/.
func Installed() string {
	cache, _ := os.UserCacheDir()
	return cmp.Or(os.Getenv("REDRIVE_BROKERS_DIR"), filepath.Join(cache, "redrive"))
}

// Ports finds ports of loopback that no process listens on, and gives each only once, also among the
// test processes of this machine, which lock a file for each port that they have. They are
// below those that systems give to outgoing connections: one of these could take a port
// before its server listens, or while a killed server is not back yet.
func Ports(count int) (ports []int, err error) {
	const from, to = 10_000, 32_768
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("redrive-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	given.Lock()
	defer given.Unlock()
	for tries := 0; len(ports) < count; tries++ {
		port := from + rand.IntN(to-from)
		if given.ports[port] != nil {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil && tries < 100 {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer l.Close()
		lock, ok, err := tryLock(filepath.Join(dir, strconv.Itoa(port)))
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		given.ports[port] = lock
		ports = append(ports, port)
	}
	return ports, nil
}

var given = struct {
	sync.Mutex
	ports map[int]*os.File
}{ports: map[int]*os.File{}}
