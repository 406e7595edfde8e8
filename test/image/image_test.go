// Package image_test builds deploy/Dockerfile with podman, which needs no daemon, and
// runs what comes out. Nothing is pulled: the image that it begins with is made here, of
// the Go that runs the test, so what Docker's own would add is not tried.
package image_test

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

const root = "../.."

// podman keeps its images and containers in a folder of its own.
type podman struct {
	t     *testing.T
	flags []string
}

func newPodman(t *testing.T) *podman {
	t.Helper()
	for _, program := range []string{"podman", "runc", "/bin/busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("this needs podman, runc and a static busybox: run `make test`, or `make install-podman` once (%v)", err)
		}
	}
	dir := t.TempDir()
	// cgroupfs and runc work without systemd, on either version of cgroups.
	return &podman{t, []string{"--root", filepath.Join(dir, "storage"), "--runroot", filepath.Join(dir, "run"),
		"--tmpdir", filepath.Join(dir, "tmp"),
		"--storage-driver", "vfs", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "none"}}
}

func (p *podman) command(args ...string) *exec.Cmd {
	return exec.Command("podman", append(p.flags[:len(p.flags):len(p.flags)], args...)...)
}

// try is what a command prints, and its error.
func (p *podman) try(args ...string) (string, error) {
	c := p.command(args...)
	var errOut bytes.Buffer
	c.Stderr = &errOut
	out, err := c.Output()
	return string(out) + errOut.String(), err
}

func (p *podman) run(args ...string) string {
	p.t.Helper()
	c := p.command(args...)
	var errOut bytes.Buffer
	c.Stderr = &errOut
	out, err := c.Output()
	if err != nil {
		p.t.Fatalf("podman %s: %v\n%s%s", strings.Join(args, " "), err, out, &errOut)
	}
	return strings.TrimSpace(string(out))
}

func (p *podman) json(into any, args ...string) {
	p.t.Helper()
	if out := p.run(args...); json.Unmarshal([]byte(out), into) != nil {
		p.t.Fatalf("podman %s says\n%s", strings.Join(args, " "), out)
	}
}

// golang makes the image that the Dockerfile begins with: a shell, the world's
// authorities, and places for Go and its caches, which are mounted when it is used.
func (p *podman) golang(name string) {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), "golang.tar")
	f, err := os.Create(file)
	must(p.t, err)
	w := tar.NewWriter(f)
	add := func(h tar.Header, from string) {
		var data []byte
		if from != "" {
			data, err = os.ReadFile(from)
			must(p.t, err)
			h.Typeflag, h.Size = tar.TypeReg, int64(len(data))
		}
		must(p.t, w.WriteHeader(&h))
		if _, err := w.Write(data); err != nil {
			p.t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin/", "etc/", "etc/ssl/", "etc/ssl/certs/", "go/", "root/", "tmp/", "usr/",
		"usr/local/", "usr/local/go/"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, "")
	}
	add(tar.Header{Name: "bin/busybox", Mode: 0o755}, "/bin/busybox")
	for _, name := range []string{"sh", "mkdir"} {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: "busybox"}, "")
	}
	add(tar.Header{Name: "etc/ssl/certs/ca-certificates.crt", Mode: 0o644}, authorities)
	must(p.t, w.Close())
	must(p.t, f.Close())
	p.run("import", "--change", "ENV PATH=/usr/local/go/bin:/bin", "--change", "ENV GOTOOLCHAIN=local",
		"--change", "ENV GOPROXY=off", "--change", "ENV GOMODCACHE=/modules", "--change", "ENV GOCACHE=/built", file,
		"localhost/"+name)
}

const authorities = "/etc/ssl/certs/ca-certificates.crt"

// goEnv is a variable of the Go that runs the test.
func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	must(t, err)
	return strings.TrimSpace(string(out))
}

// content is what is in an image, by path, as a container of it begins.
func (p *podman) content(image string) map[string]*tar.Header {
	p.t.Helper()
	container := p.run("create", image)
	defer p.run("rm", "--force", "--volumes", container)
	c := p.command("export", container)
	out, err := c.StdoutPipe()
	must(p.t, err)
	must(p.t, c.Start())
	all := map[string]*tar.Header{}
	for r := tar.NewReader(out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		must(p.t, err)
		all[strings.TrimSuffix(h.Name, "/")] = h
	}
	must(p.t, c.Wait())
	return all
}

const (
	image   = "localhost/redrive:test"
	version = "1.2.3-test"
	program = "/usr/local/bin/redrive"
)

// The Dockerfile, step by step as it stands, in a folder with nothing but what its
// ignore file lets through; then its image at work.
func TestTheImage(t *testing.T) {
	p := newPodman(t)
	dockerfile, err := os.ReadFile(root + "/deploy/Dockerfile")
	must(t, err)
	from := regexp.MustCompile(`(?m)^FROM .*golang:\$\{GO_VERSION\}(\S*) AS build$`).FindSubmatch(dockerfile)
	goVersion := regexp.MustCompile(`(?m)^ARG GO_VERSION=(\S+)$`).FindSubmatch(dockerfile)
	if from == nil || goVersion == nil {
		t.Fatalf("the Dockerfile begins with another image:\n%s", dockerfile)
	}
	p.golang("golang:" + string(goVersion[1]) + string(from[1]))
	p.run("build", "--pull=never", "--isolation", "chroot", "--network", "host", "--format", "docker",
		"--file", root+"/deploy/Dockerfile", "--ignorefile", root+"/deploy/Dockerfile.dockerignore", "--build-arg",
		"VERSION="+version,
		"--volume", goEnv(t, "GOROOT")+":/usr/local/go:ro", "--volume", goEnv(t, "GOMODCACHE")+":/modules:ro",
		"--volume", goEnv(t, "GOCACHE")+":/built",
		"--tag", image, root)

	t.Run("config", func(t *testing.T) { p := p.of(t); config(p) })
	t.Run("content", func(t *testing.T) { p := p.of(t); content(p) })
	t.Run("at work", func(t *testing.T) {
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) { atWork(p.of(t), v) })
	})
	t.Run("three replicas", func(t *testing.T) {
		brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, _ *rabbitnode.Node) {
			replicas(p.of(t), v)
		})
	})
}

// of is the same podman in another test.
func (p *podman) of(t *testing.T) *podman { return &podman{t, p.flags} }

// config holds what the image says of itself.
func config(p *podman) {
	t := p.t
	var inspected []struct {
		Config struct {
			User, WorkingDir, StopSignal string
			Entrypoint, Cmd, Env         []string
			Labels                       map[string]string
			Volumes, ExposedPorts        map[string]any
		}
		HealthCheck struct{ Test []string }
	}
	p.json(&inspected, "image", "inspect", image)
	c := inspected[0].Config
	if c.User != "65532:65532" || c.WorkingDir != "/var/lib/redrive" ||
		!slices.Equal(c.Entrypoint, []string{program}) || !slices.Equal(c.Cmd, []string{"serve"}) {
		t.Errorf("runs %q %q as %q in %q", c.Entrypoint, c.Cmd, c.User, c.WorkingDir)
	}
	if _, ok := c.Volumes["/var/lib/redrive"]; !ok || len(c.Volumes) != 1 {
		t.Errorf("volumes %v", c.Volumes)
	}
	if _, ok := c.ExposedPorts["8250/tcp"]; !ok {
		t.Errorf("ports %v", c.ExposedPorts)
	}
	if got := inspected[0].HealthCheck.Test; !slices.Equal(got, []string{"CMD", program, "status", "--alive"}) {
		t.Errorf("health check %q", got)
	}
	expect.Equal(t, c.Labels["org.opencontainers.image.version"], version, "the version in %v", c.Labels)
	for _, name := range []string{"title", "description", "licenses", "source", "documentation"} {
		if c.Labels["org.opencontainers.image."+name] == "" {
			t.Errorf("no label %s", name)
		}
	}
}

// content holds what is in the image: no shell, no secret, nothing of the tree; and a
// binary that needs nothing else.
func content(p *podman) {
	t := p.t
	all := p.content(image)
	data := all["var/lib/redrive"]
	if data == nil || data.Uid != 65532 || data.Gid != 65532 || data.Mode&0o022 != 0 {
		t.Errorf("the folder for data: %+v", data)
	}
	for _, path := range slices.Sorted(maps.Keys(all)) {
		h := all[path]
		if h.FileInfo().IsDir() || h.Size == 0 {
			continue // folders, and what every container's /etc and /dev have
		}
		if !slices.Contains([]string{"LICENSE", strings.TrimPrefix(authorities, "/"), strings.TrimPrefix(program, "/")},
			path) {
			t.Errorf("there is %s in the image", path)
		}
	}
	container := p.run("create", image)
	defer p.run("rm", "--force", "--volumes", container)
	binary := filepath.Join(t.TempDir(), "redrive")
	p.run("cp", container+":"+program, binary)
	f, err := elf.Open(binary)
	must(t, err)
	defer f.Close()
	for _, s := range f.Progs {
		if s.Type == elf.PT_INTERP || s.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary is not static: it has %v", s.Type)
		}
	}
}

// atWork runs the image as deploy/ says: another user, no capability, nothing to write
// but its volume, the password in a file. A message fails and comes back; the health
// check sees the service live and gone; and what is kept outlives the container.
func atWork(p *podman, v *brokertest.VHost) {
	t := p.t
	url := v.ServiceURL(brokertest.Works("orders"))
	address, dir := brokertest.Address(t), t.TempDir()
	files := map[string]string{"broker-url": url, "redrive.yaml": fmt.Sprintf(`listen: %s
store: {disk: /var/lib/redrive/data, reserve: 1MiB}
policies: [{name: orders, queues: [orders], attempts: 2, backoff: {fixed: 100ms}}]
`, address)}
	for name, text := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o444))
	}
	v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeDeadLetters})
	volume := "redrive-" + filepath.Base(dir) + fmt.Sprint(time.Now().UnixNano())
	start := func() string {
		return p.serve("--env", "REDRIVE_BROKER_URL_FILE=/run/secrets/broker-url", "--env", "REDRIVE_ADDRESS="+address,
			"--volume", dir+"/broker-url:/run/secrets/broker-url:ro", "--volume",
			dir+"/redrive.yaml:/etc/redrive/redrive.yaml:ro", "--volume", volume+":/var/lib/redrive")
	}
	container := start()
	defer func() {
		p.remove(container)
		p.run("volume", "rm", volume)
	}()
	status := func(args ...string) (string, error) {
		return p.try(append([]string{"exec", container, program, "status"}, args...)...)
	}
	brokertest.Eventually(t, "the service is ready", func() bool {
		out, err := status()
		return err == nil && strings.Contains(out, "ready: nothing is wrong") && strings.Contains(out, version)
	})
	restricted(p, container)

	c := v.Consume("orders")
	c.Fail("one")
	expect.Equal(t, c.Reject().Headers[wire.HeaderAttempt], any(int64(1)), "it came back with attempt")
	parked := func() bool {
		out, err := status("-o", "json")
		return err == nil && strings.Contains(strings.ReplaceAll(out, " ", ""), `"parked":1,`)
	}
	brokertest.Eventually(t, "the message is parked", parked)
	healthy := func() bool {
		out, err := p.try("healthcheck", "run", container)
		if err != nil {
			t.Logf("not healthy: %v: %s", err, out)
		}
		return err == nil
	}
	// A machine that is busy may take longer for one than the five seconds that the image gives it.
	brokertest.Eventually(t, "the container is healthy", healthy)

	// It ends in order, well within the time that Docker and Kubernetes give it.
	p.run("stop", "--time", "30", container)
	expect.Equal(t, p.run("inspect", "--format", "{{.State.ExitCode}}", container), "0", "it ended with")
	if healthy() {
		t.Error("it is healthy, and gone")
	}
	p.remove(container)
	container = start()
	brokertest.Eventually(t, "another container shows the parked message", parked)
}

// serve starts the service in a container that may do as little as deploy/ says, and is
// on the machine's loopback.
func (p *podman) serve(flags ...string) (container string) {
	p.t.Helper()
	args := append([]string{"run", "--detach", "--network", "host", "--read-only", "--read-only-tmpfs=false",
		"--cap-drop", "all", "--security-opt", "no-new-privileges",
		// Others than the machine's own limits would take a capability.
		"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
		// It ends though the test was killed.
		"--timeout", "900"}, flags...)
	return p.run(append(args, image, "serve", "--config", "/etc/redrive/redrive.yaml")...)
}

// remove ends a container, and shows what it said where the test has failed.
func (p *podman) remove(container string) {
	p.t.Helper()
	if p.t.Failed() {
		out, _ := p.try("logs", container)
		p.t.Logf("container %.12s says:\n%s", container, out)
	}
	p.run("rm", "--force", "--volumes", "--time", "20", container)
}

// restricted holds the service's process to what the container was to be.
func restricted(p *podman, container string) {
	t := p.t
	pid := p.run("inspect", "--format", "{{.State.Pid}}", container)
	of := func(name string) string {
		data, err := os.ReadFile("/proc/" + pid + "/" + name)
		must(t, err)
		return string(data)
	}
	status := of("status")
	for _, want := range []string{`Uid:\t65532\t65532\t65532\t65532`, `Gid:\t65532\t65532\t65532\t65532`, `CapEff:\t0+`,
		`CapBnd:\t0+`, `NoNewPrivs:\t1`} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(status) {
			t.Errorf("the process is not as it should be: no %s in\n%s", want, status)
		}
	}
	var writable []string
	for line := range strings.Lines(of("mounts")) {
		f := strings.Fields(line)
		if at, kind := f[1], f[2]; slices.Contains(strings.Split(f[3], ","), "rw") &&
			!slices.Contains([]string{"proc", "sysfs", "mqueue", "devpts"}, kind) {
			writable = append(writable, at)
		}
	}
	// What each container has: devices, the names of hosts, and what hides the kernel's.
	writable = slices.DeleteFunc(writable, func(at string) bool {
		return regexp.MustCompile(`^/(dev|proc|sys)(/|$)|^/etc/(hosts|hostname|resolv\.conf)$|^/run/\.containerenv$`).MatchString(at)
	})
	if !slices.Equal(writable, []string{"/var/lib/redrive"}) {
		t.Errorf("it may write to %q", writable)
	}
}

// replicas runs what the Compose file runs, by hand, since Compose needs Docker: three
// containers of the image with its redrive.yaml and secrets, a RabbitMQ with its users, a
// Valkey with its valkey.conf and users. A replica is killed while messages fail and come
// back, and all come back.
func replicas(p *podman, v *brokertest.VHost) {
	t := p.t
	files := prepareCompose(t)
	files.users(v)
	valkey := startValkey(t, files)
	config := files.read("redrive.yaml")
	for was, is := range map[string]string{"rabbitmq:5672": hostOf(t, v.AMQP),
		"rabbitmq:15672": hostOf(t, v.Management), "valkey:6379": valkey} {
		if !strings.Contains(config, was) {
			t.Fatalf("redrive.yaml does not name %s", was)
		}
		config = strings.ReplaceAll(config, was, is)
	}
	var containers []string
	for range 3 {
		address := brokertest.Address(t)
		file := filepath.Join(t.TempDir(), "redrive.yaml")
		must(t, os.WriteFile(file, []byte(strings.Replace(config, "0.0.0.0:8250", address, 1)), 0o444))
		flags := []string{"--env", "REDRIVE_ADDRESS=" + address, "--volume", file + ":/etc/redrive/redrive.yaml:ro"}
		for _, name := range []string{"broker", "redis"} {
			flags = append(flags, "--env", "REDRIVE_"+strings.ToUpper(name)+"_PASSWORD_FILE=/run/secrets/"+name+"-password",
				"--volume", files.dir+"/secrets/"+name+"-password:/run/secrets/"+name+"-password:ro")
		}
		c := p.serve(flags...)
		defer p.remove(c)
		containers = append(containers, c)
	}
	for _, c := range containers {
		brokertest.Eventually(t, "each replica is ready", func() bool {
			out, err := p.try("exec", "--env", "REDRIVE_USER=admin", "--env",
				"REDRIVE_PASSWORD="+files.read("secrets/admin-password"), c, program, "status")
			return err == nil && strings.Contains(out, "ready: nothing is wrong")
		})
	}

	v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeDeadLetters})
	consumer := v.Consume("orders")
	const messages = 300
	back := map[string]string{} // body: id
	for i := range messages {
		v.Publish("", "orders", amqp.Publishing{Body: fmt.Append(nil, i)})
	}
	for killed := false; len(back) < messages; {
		d := consumer.Next()
		id, _ := d.Headers[wire.HeaderID].(string)
		if id == "" {
			must(t, d.Reject(false))
			continue
		}
		// One that comes twice after a kill has the same id.
		if was := back[string(d.Body)]; was != "" && was != id {
			t.Errorf("message %s came as %s and %s", d.Body, was, id)
		}
		back[string(d.Body)] = id
		must(t, d.Ack(false))
		if !killed {
			p.run("kill", containers[0])
			killed = true
		}
	}
}

func hostOf(t *testing.T, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	must(t, err)
	return u.Host
}

// startValkey starts the Valkey that is beside RabbitMQ 4, with the configuration and the
// users of the Compose file, and tells where it is.
func startValkey(t *testing.T, files compose) (address string) {
	t.Helper()
	var system string
	for _, b := range brokertest.All(t) {
		if _, err := os.Stat(b.Root + "/usr/bin/valkey-server"); b.Root != "" && err == nil {
			system = b.Root
		}
	}
	if system == "" {
		t.Fatal("this needs Valkey: run `make test`, or `make install-valkey` once")
	}
	dir, err := os.MkdirTemp(system+"/tmp", "redrive-valkey-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	inside := strings.TrimPrefix(dir, system)
	config := files.read("valkey.conf")
	for was, is := range map[string]string{"dir /data": "dir " + inside, "/run/secrets/users.acl": inside +
		"/users.acl"} {
		if !strings.Contains(config, was) {
			t.Fatalf("valkey.conf does not have %s", was)
		}
		config = strings.Replace(config, was, is, 1)
	}
	for name, text := range map[string]string{"valkey.conf": config + "\n",
		"users.acl": files.read("secrets/valkey-users.acl") + "\n"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	address = brokertest.Address(t)
	_, port, _ := strings.Cut(address, ":")
	c := exec.Command("/usr/bin/valkey-server", inside+"/valkey.conf", "--bind", "127.0.0.1", "--port", port)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: system, Pdeathsig: syscall.SIGKILL}
	var log bytes.Buffer
	c.Stdout, c.Stderr = &log, &log
	must(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil || t.Failed() {
			t.Logf("Valkey ended (%v) and said:\n%s", err, &log)
		}
	})
	brokertest.Eventually(t, "Valkey answers", func() bool {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
	return address
}

// compose is a copy of deploy/compose with the secrets made.
type compose struct {
	t   *testing.T
	dir string
}

func prepareCompose(t *testing.T) compose {
	t.Helper()
	c := compose{t, t.TempDir()}
	must(t, os.CopyFS(c.dir, os.DirFS(root+"/deploy/compose")))
	if err := os.RemoveAll(filepath.Join(c.dir, "secrets")); err != nil { // a person's own
		t.Fatal(err)
	}
	c.prepare()
	return c
}

func (c compose) prepare() {
	c.t.Helper()
	if out, err := exec.Command(filepath.Join(c.dir, "prepare")).CombinedOutput(); err != nil {
		c.t.Fatalf("prepare: %v\n%s", err, out)
	}
}

func (c compose) read(name string) string {
	c.t.Helper()
	data, err := os.ReadFile(filepath.Join(c.dir, name))
	must(c.t, err)
	return strings.TrimSpace(string(data))
}

// users makes the file's users in a RabbitMQ.
func (c compose) users(v *brokertest.VHost) {
	v.Must("POST", "definitions", json.RawMessage(c.read("secrets/rabbitmq-definitions.json")))
}

// The users that deploy/compose/prepare makes get in, with the passwords that it wrote,
// and no one else does.
func TestTheUsersOfTheComposeFile(t *testing.T) {
	files := prepareCompose(t)
	definitions := files.read("secrets/rabbitmq-definitions.json")
	files.prepare()
	if files.read("secrets/rabbitmq-definitions.json") != definitions {
		t.Error("made again, the secrets are others, which a RabbitMQ with data does not read")
	}
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, _ *rabbitnode.Node) {
		files.users(v)
		dial := func(user, password string) error {
			u, err := url.Parse(v.URL())
			must(t, err)
			u.User = url.UserPassword(user, password)
			c, err := amqp.Dial(u.String())
			if err == nil {
				defer c.Close()
				var ch *amqp.Channel
				if ch, err = c.Channel(); err == nil {
					err = ch.ExchangeDeclare("redrive.test", "direct", false, true, false, false, nil)
				}
			}
			return err
		}
		if err := dial("redrive", files.read("secrets/broker-password")); err != nil {
			t.Errorf("redrive does not get in: %v", err)
		}
		if err := dial("redrive", files.read("secrets/admin-password")); err == nil {
			t.Error("redrive gets in with another's password")
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, v.Management+"/api/whoami", nil)
		must(t, err)
		r.SetBasicAuth("admin", files.read("secrets/admin-password"))
		resp, err := http.DefaultClient.Do(r)
		must(t, err)
		defer resp.Body.Close()
		var who struct{ Tags []string }
		if err := json.NewDecoder(resp.Body).Decode(&who); err != nil || resp.StatusCode != http.StatusOK ||
			strings.Join(who.Tags, " ") != "administrator" {
			t.Errorf("admin is %+v: %s, %v", who, resp.Status, err)
		}
	})
}

var must = expect.NoError
