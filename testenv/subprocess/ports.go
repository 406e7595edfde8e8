package subprocess

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

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
