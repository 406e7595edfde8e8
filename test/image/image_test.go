package image_test

import (
	"debug/elf"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

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
	if err != nil {
		t.Fatal(err)
	}
	from := regexp.MustCompile(`(?m)^FROM .*golang:\$\{GO_VERSION\}(\S*) AS build$`).FindSubmatch(dockerfile)
	goVersion := regexp.MustCompile(`(?m)^ARG GO_VERSION=(\S+)$`).FindSubmatch(dockerfile)
	if from == nil || goVersion == nil {
		t.Fatalf("the Dockerfile begins with another image:\n%s", dockerfile)
	}
	p.golang("golang:" + string(goVersion[1]) + string(from[1]))
	p.run("build", "--pull=never", "--isolation", "chroot", "--network", "host", "--format", "docker",
		"--file", root+"/deploy/Dockerfile", "--ignorefile", root+"/deploy/Dockerfile.dockerignore", "--build-arg", "VERSION="+version,
		"--volume", goEnv(t, "GOROOT")+":/usr/local/go:ro", "--volume", goEnv(t, "GOMODCACHE")+":/modules:ro", "--volume", goEnv(t, "GOCACHE")+":/built",
		"--tag", image, root)

	t.Run("config", func(t *testing.T) { p := p.of(t); config(p) })
	t.Run("content", func(t *testing.T) { p := p.of(t); content(p) })
	t.Run("at work", func(t *testing.T) {
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) { atWork(p.of(t), v) })
	})
	t.Run("three replicas", func(t *testing.T) {
		brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, _ *rabbitnode.Node) { replicas(p.of(t), v) })
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
	if c.User != "65532:65532" || c.WorkingDir != "/var/lib/redrive" || !slices.Equal(c.Entrypoint, []string{program}) || !slices.Equal(c.Cmd, []string{"serve"}) {
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
	if got := c.Labels["org.opencontainers.image.version"]; got != version {
		t.Errorf("version %q in %v", got, c.Labels)
	}
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
		if !slices.Contains([]string{"LICENSE", strings.TrimPrefix(authorities, "/"), strings.TrimPrefix(program, "/")}, path) {
			t.Errorf("there is %s in the image", path)
		}
	}
	container := p.run("create", image)
	defer p.run("rm", "--force", "--volumes", container)
	binary := filepath.Join(t.TempDir(), "redrive")
	p.run("cp", container+":"+program, binary)
	f, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
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
	address, dir := freeAddress(t), t.TempDir()
	files := map[string]string{"broker-url": url, "redrive.yaml": fmt.Sprintf(`listen: %s
store: {disk: /var/lib/redrive/data, reserve: 1MiB}
policies: [{name: orders, queues: [orders], attempts: 2, backoff: {fixed: 100ms}}]
`, address)}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeDeadLetters})
	volume := "redrive-" + filepath.Base(dir) + fmt.Sprint(time.Now().UnixNano())
	start := func() string {
		return p.serve("--env", "REDRIVE_BROKER_URL_FILE=/run/secrets/broker-url", "--env", "REDRIVE_ADDRESS="+address,
			"--volume", dir+"/broker-url:/run/secrets/broker-url:ro", "--volume", dir+"/redrive.yaml:/etc/redrive/redrive.yaml:ro", "--volume", volume+":/var/lib/redrive")
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
	v.Publish("", "orders", amqp.Publishing{Body: []byte("one")})
	c.Reject()
	if d := c.Reject(); d.Headers[wire.HeaderAttempt] != int64(1) {
		t.Errorf("it came back with %v", d.Headers)
	}
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
	if code := p.run("inspect", "--format", "{{.State.ExitCode}}", container); code != "0" {
		t.Errorf("it ended with %s", code)
	}
	if healthy() {
		t.Error("it is healthy, and gone")
	}
	p.remove(container)
	container = start()
	brokertest.Eventually(t, "another container shows the parked message", parked)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer free.Close()
	return free.Addr().String()
}

// serve starts the service in a container that may do as little as deploy/ says, and is
// on the machine's loopback.
func (p *podman) serve(flags ...string) (container string) {
	p.t.Helper()
	args := append([]string{"run", "--detach", "--network", "host", "--read-only", "--read-only-tmpfs=false", "--cap-drop", "all", "--security-opt", "no-new-privileges",
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
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	status := of("status")
	for _, want := range []string{`Uid:\t65532\t65532\t65532\t65532`, `Gid:\t65532\t65532\t65532\t65532`, `CapEff:\t0+`, `CapBnd:\t0+`, `NoNewPrivs:\t1`} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(status) {
			t.Errorf("the process is not as it should be: no %s in\n%s", want, status)
		}
	}
	var writable []string
	for line := range strings.Lines(of("mounts")) {
		f := strings.Fields(line)
		if at, kind := f[1], f[2]; slices.Contains(strings.Split(f[3], ","), "rw") && !slices.Contains([]string{"proc", "sysfs", "mqueue", "devpts"}, kind) {
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
