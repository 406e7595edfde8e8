// Package redisnode runs private Redis and Valkey servers on loopback, for tests:
// one alone, with Sentinel, or as a cluster. They are away from the standard ports,
// each in a folder of its own, read no configuration of the machine, and are gone
// when their owner is, however that ends.
package redisnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/testenv/subprocess"
)

// ErrNotInstalled: there is no server to run.
var ErrNotInstalled = errors.New("not installed")

// Options of servers.
type Options struct {
	// Root is a folder with a whole system in it that has Valkey, to change root into;
	// "" uses the Redis of this machine.
	Root string
	// Config is added to the configuration of a server (not of a sentinel): what is
	// set there wins. Without it a server syncs its append-only file at every write,
	// keeps no snapshots, and has no limit of memory.
	Config string
	// DownAfter is how long a primary may be silent before a replica replaces it; 0 is
	// the constant.
	DownAfter time.Duration
	// TLS, when not nil, has a server listen for TLS as well, on a port of its own.
	TLS *Identity

	disk func(dir string) error // puts into a server's folder what it has on its disk
}

// Identity is who a server is, in PEM.
type Identity struct {
	Cert, Key []byte
	// Clients is the CA whose certificates clients must have; nil: they need none.
	Clients []byte
}

// Name is the software's.
func (o Options) Name() string {
	if o.Root != "" {
		return "Valkey"
	}
	return "Redis"
}

// Server is a process that this process owns, with its data. Its methods are for one
// goroutine at a time, but Do and Addr may be called at once.
type Server struct {
	opts    Options
	program string // as seen from within Root
	dir     string // as this process sees it
	inside  string // as the server sees it
	args    []string
	port    int
	secure  int // its port for TLS; 0: it has none
	process *subprocess.Process
}

// Start starts one server and waits until it answers.
func Start(ctx context.Context, o Options) (*Server, error) { return start(ctx, o, "") }

// start starts a server with more configuration, which the options' goes before.
func start(ctx context.Context, o Options, config string) (*Server, error) {
	ports, err := subprocess.Ports(3)
	if err != nil {
		return nil, err
	}
	secure := 0
	if o.TLS != nil {
		secure = ports[2]
	}
	return run(ctx, o, ports[0], secure, nil, fmt.Sprintf(`appendonly yes
appendfsync always
save ""
repl-diskless-sync-delay 0
cluster-port %d
%s
%s
`, ports[1], config, o.Config))
}

// run starts a server, or a sentinel by its arguments, on a port, and on another one for
// TLS unless that is 0.
func run(ctx context.Context, o Options, port, secure int, args []string, config string) (*Server, error) {
	program, err := find(o)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: o, program: program, args: args, port: port, secure: secure}
	if s.dir, err = os.MkdirTemp(o.tmp(), "redrive-redis-"); err != nil {
		return nil, err
	}
	s.inside = strings.TrimPrefix(s.dir, strings.TrimSuffix(o.Root, "/"))
	config = fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %s\n%s", port, s.inside, config)
	if secure != 0 {
		config += s.listenTLS()
		err = s.writeIdentity(o.TLS)
	}
	if err == nil && o.disk != nil {
		err = o.disk(s.dir)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, "server.conf"), []byte(config), 0o600)
	}
	if err == nil {
		err = s.Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// listenTLS is the configuration for TLS.
func (s *Server) listenTLS() string {
	ask := "no"
	if s.opts.TLS.Clients != nil {
		ask = "yes"
	}
	return fmt.Sprintf("tls-port %d\ntls-cert-file %[2]s/cert.pem\ntls-key-file %[2]s/key.pem\ntls-ca-cert-file %[2]s/ca.pem\ntls-auth-clients %s\n", s.secure, s.inside, ask)
}

func (s *Server) writeIdentity(id *Identity) (err error) {
	ca := id.Clients
	if ca == nil {
		ca = id.Cert // it wants one, and does not use it to ask
	}
	for name, pem := range map[string][]byte{"cert.pem": id.Cert, "key.pem": id.Key, "ca.pem": ca} {
		err = errors.Join(err, os.WriteFile(filepath.Join(s.dir, name), pem, 0o600))
	}
	return err
}

// tmp is where a server's folder is made; "": where the system says.
func (o Options) tmp() string {
	if o.Root == "" {
		return ""
	}
	return filepath.Join(o.Root, "tmp")
}

// find finds the server's program as seen from within root.
func find(o Options) (string, error) {
	if o.Root == "" {
		if program, err := exec.LookPath("redis-server"); err == nil {
			return program, nil
		}
		return "", fmt.Errorf("Redis is %w: `make install-redis` installs it", ErrNotInstalled)
	}
	const program = "/usr/bin/valkey-server"
	if _, err := os.Stat(filepath.Join(o.Root, program)); err != nil {
		return "", fmt.Errorf("Valkey is %w in %s: `make install-valkey` installs it", ErrNotInstalled, o.Root)
	}
	return program, nil
}

// Addr is where it listens, as host:port.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// URL is the same as a URL.
func (s *Server) URL() string { return "redis://" + s.Addr() }

// TLSAddr is where it listens for TLS, when it does.
func (s *Server) TLSAddr() string { return fmt.Sprintf("127.0.0.1:%d", s.secure) }

// Restart starts it on the data it has, and waits until it answers and has read them;
// kill it first when it runs.
func (s *Server) Restart(ctx context.Context) error {
	out, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	name, args := subprocess.InRoot(s.opts.Root, s.program, append([]string{s.inside + "/server.conf"}, s.args...)...)
	c := exec.Command(name, args...)
	c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	c.Stdout, c.Stderr = out, out
	if s.process, err = subprocess.Start(c, s.dir); err != nil {
		return fmt.Errorf("starting %s: %w", s.opts.Name(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := s.Do(ctx, "PING")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not start: %w\n%s", s.opts.Name(), err, s.LastWords())
		case <-s.process.Ended():
			return fmt.Errorf("%s ended while starting:\n%s", s.opts.Name(), s.LastWords())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Kill ends it as a power cut would.
func (s *Server) Kill() {
	s.process.Kill()
	s.process = nil
}

// Pause stops it where it is: it keeps its connections, and answers nothing. It may be
// killed then.
func (s *Server) Pause() error { return s.process.Pause() }

// Continue lets it go on after Pause.
func (s *Server) Continue() error { return s.process.Continue() }

// Stop ends it for good, and leaves nothing behind.
func (s *Server) Stop() error {
	s.Kill() // nothing of it is kept, so nothing need be saved
	return os.RemoveAll(s.dir)
}

// LastWords is the end of what it logged.
func (s *Server) LastWords() string {
	const most = 4000
	said, _ := os.ReadFile(s.log())
	return string(said[max(0, len(said)-most):])
}

func (s *Server) log() string { return filepath.Join(s.dir, "log") }
