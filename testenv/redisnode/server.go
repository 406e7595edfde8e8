// Package redisnode runs private Redis and Valkey servers on loopback, for tests:
// one alone, with Sentinel, or as a cluster. They are away from the standard ports,
// each in a folder of its own, read no configuration of the machine, and are gone
// when their owner is, however that ends.
package redisnode

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/expect"
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
	TLS *TLS

	disk func(dir string) error // puts into a server's folder what it has on its disk
}

// TLS is who a server is, and whom it lets in.
type TLS struct {
	By    *authority.Authority // has signed its certificate
	Hosts []string             // names and addresses in that
	Asks  bool                 // clients must have a certificate of By's too
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
	secure  int // its port for TLS
	process *subprocess.Process
}

// Start starts one server and waits until it answers.
func Start(ctx context.Context, o Options) (*Server, error) { return start(ctx, o, "") }

// start starts a server, or with args a sentinel. Of a server's configuration what the options
// say wins.
func start(ctx context.Context, o Options, config string, args ...string) (*Server, error) {
	ports, err := subprocess.Ports(3)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: o, args: args, port: ports[0], secure: ports[2]}
	tmp := ""
	if o.Root != "" {
		tmp = filepath.Join(o.Root, "tmp")
	}
	if s.program, err = find(o.Root); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp(tmp, "redrive-redis-"); err != nil {
		return nil, err
	}
	s.inside = strings.TrimPrefix(s.dir, strings.TrimSuffix(o.Root, "/"))
	if len(args) == 0 {
		config = fmt.Sprintf(`appendonly yes
appendfsync always
save ""
repl-diskless-sync-delay 0
cluster-port %d
%s
%s
`, ports[1], config, o.Config)
	}
	secure, err := s.listenTLS()
	if err == nil && o.disk != nil {
		err = o.disk(s.dir)
	}
	if err == nil {
		config = fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %s\n%s%s", s.port, s.inside, config, secure)
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

// find finds the server's program as seen from within root.
func find(root string) (string, error) {
	if root == "" {
		if program, err := exec.LookPath("redis-server"); err == nil {
			return program, nil
		}
		return "", fmt.Errorf("Redis is %w: `make install-redis` installs it", ErrNotInstalled)
	}
	const program = "/usr/bin/valkey-server"
	if _, err := os.Stat(filepath.Join(root, program)); err != nil {
		return "", fmt.Errorf("Valkey is %w in %s: `make install-valkey` installs it", ErrNotInstalled, root)
	}
	return program, nil
}

// listenTLS gives the server a certificate, and is the configuration for TLS.
func (s *Server) listenTLS() (config string, err error) {
	id := s.opts.TLS
	if id == nil {
		return "", nil
	}
	leaf := authority.Leaf{User: "redis", Hosts: id.Hosts}
	return fmt.Sprintf(`tls-port %d
tls-cert-file %[2]s/cert.pem
tls-key-file %[2]s/key.pem
tls-ca-cert-file %[2]s/ca.pem
tls-auth-clients %[3]s
`, s.secure, s.inside, map[bool]string{true: "yes", false: "no"}[id.Asks]), id.By.Install(s.dir, leaf)
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
	ended := false
	err = until(ctx, s.opts.Name()+" answers", func() bool {
		select {
		case <-s.process.Ended():
			ended = true
		default:
			_, err = s.Do(ctx, "PING")
		}
		return ended || err == nil
	})
	if ended {
		err = fmt.Errorf("%s ended while starting", s.opts.Name())
	}
	if err != nil {
		return fmt.Errorf("%w:\n%s", err, s.LastWords())
	}
	return nil
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

// Do gives it a command, on a connection of its own. The answer is a string, an int64,
// nil, or a []any of these; an error that the server answered is an error here.
func (s *Server) Do(ctx context.Context, command ...string) (any, error) {
	answer, err := s.do(ctx, command)
	if err != nil {
		what := strings.Join(command[:min(2, len(command))], " ")
		return nil, fmt.Errorf("%s at %s: %s: %w", s.opts.Name(), s.Addr(), what, err)
	}
	return answer, nil
}

func (s *Server) do(ctx context.Context, command []string) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// rueidis dials before it knows the context, which ends the connection too: else it would
	// wait to say good-bye to a server that is paused.
	dial := func(_ context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		c, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			context.AfterFunc(ctx, func() { c.Close() })
		}
		return c, err
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, DialCtxFn: dial,
		AlwaysRESP2: true, DisableCache: true, DisableRetry: true, ForceSingleClient: true,
		ClientSetInfo: rueidis.DisableClientSetInfo})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	answer, err := client.Do(ctx, client.B().Arbitrary(command...).Build()).ToAny()
	if rueidis.IsRedisNil(err) {
		err = nil
	}
	cancel()
	return answer, err
}

// texts is an answer that is a list of strings.
func texts(answer any) (list []string) {
	all, _ := answer.([]any)
	for _, one := range all {
		text, _ := one.(string)
		list = append(list, text)
	}
	return list
}

// Info is a field of what it says of itself; "" when it does not answer or say so.
func (s *Server) Info(ctx context.Context, section, field string) string {
	return s.field(ctx, field, "INFO", section)
}

// field is a field of an answer of lines "field:value".
func (s *Server) field(ctx context.Context, field string, command ...string) string {
	answer, _ := s.Do(ctx, command...)
	text, _ := answer.(string)
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(line, field+":"); is {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// until asks until it is so, or fails with what was still not so.
func until(ctx context.Context, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for !is() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("still not so: %s: %w", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// Each runs a test on Redis and on Valkey, side by side. One that is not installed
// fails the test when it starts a server: a suite that ran nowhere must not look green.
func Each(t *testing.T, test func(*testing.T, Options)) {
	t.Helper()
	for _, o := range Both(t) {
		t.Run(o.Name(), func(t *testing.T) {
			t.Parallel()
			test(t, o)
		})
	}
}

// Both are Redis and Valkey.
func Both(testing.TB) []Options {
	return []Options{{}, {Root: filepath.Join(subprocess.Installed(), "sid")}}
}

// New is a server for one test.
func New(t testing.TB, o Options) *Server {
	t.Helper()
	s := begin(t, o, "")
	field := map[string]string{"Redis": "redis_version", "Valkey": "valkey_version"}[o.Name()]
	t.Logf("on %s %s", o.Name(), s.Info(context.Background(), "server", field))
	return s
}

// begin is start for one test, which the server ends with; where it fails it shows what the
// server said.
func begin(t testing.TB, o Options, config string, args ...string) *Server {
	t.Helper()
	s, err := start(context.Background(), o, config, args...)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s at %s said:\n%s", o.Name(), s.Addr(), s.LastWords())
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

var must = expect.NoError

// logs is where servers keep their append-only files, in their folders.
const logs = "appendonlydir"

// growing opens the append-only file that a server writes to, and says how long it is.
func growing(dir string) (f *os.File, size int64, err error) {
	all, err := filepath.Glob(filepath.Join(dir, logs, "*.incr.aof"))
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%d append-only files grow in %s, not one", len(all), dir)
	}
	if err != nil {
		return nil, 0, err
	}
	if f, err = os.OpenFile(all[0], os.O_RDWR, 0); err != nil {
		return nil, 0, err
	}
	size, err = f.Seek(0, io.SeekEnd)
	return f, size, err
}

// Written is how much it has written to its append-only file, in bytes.
func (s *Server) Written() (int64, error) {
	f, size, err := growing(s.dir)
	if f != nil {
		f.Close()
	}
	return size, err
}

// AfterPowerCut starts another server on a copy of a server's disk, of whose append-only
// file just so many bytes had reached the disk when the power failed.
func AfterPowerCut(t testing.TB, s *Server, synced int64) *Server {
	t.Helper()
	o := s.opts
	o.disk = func(dir string) error {
		if err := os.CopyFS(filepath.Join(dir, logs), os.DirFS(filepath.Join(s.dir, logs))); err != nil {
			return err
		}
		f, size, err := growing(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		if size < synced {
			return fmt.Errorf("%s has %d bytes, not %d", f.Name(), size, synced)
		}
		return f.Truncate(synced)
	}
	return begin(t, o, "")
}

// HasCutOff reports whether a start has cut off the end of the append-only file, where the last
// write was not whole, as far as the end of its log says.
func (s *Server) HasCutOff() bool { return strings.Contains(s.LastWords(), "Truncating the AOF") }

// RewriteLog has it write its append-only file again from what it has in memory, and waits.
func (s *Server) RewriteLog(ctx context.Context) error {
	if _, err := s.Do(ctx, "BGREWRITEAOF"); err != nil {
		return err
	}
	is := func(field, want string) bool { return s.Info(ctx, "persistence", field) == want }
	if err := until(ctx, "the append-only file is rewritten", func() bool {
		return is("aof_rewrite_scheduled", "0") && is("aof_rewrite_in_progress", "0")
	}); err != nil {
		return err
	}
	if !is("aof_last_bgrewrite_status", "ok") {
		return fmt.Errorf("rewriting the append-only file failed:\n%s", s.LastWords())
	}
	return nil
}
