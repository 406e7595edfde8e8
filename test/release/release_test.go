// Package release_test builds a release for this machine by scripts/release, and installs it: the
// archive, the packages, the image, the SBOM. Other platforms are compiled by `make release`.
package release_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

const (
	root    = "../.."
	version = "1.2.3-rc.1"
)

// onlyLong leaves a test that compiles other programs to `make test-long`.
func onlyLong(t *testing.T) {
	if !brokertest.Long() {
		t.Skip("make test-long runs it")
	}
}

func TestARelease(t *testing.T) {
	onlyLong(t)
	if runtime.GOOS != "linux" {
		t.Fatal("packages are built and installed on Linux")
	}
	r := release{dist: t.TempDir()}
	r.build(t)
	name := fmt.Sprintf("redrive_%s_linux_%s", version, runtime.GOARCH)
	archive := filepath.Join(r.dist, name+".tar.gz")
	binary := filepath.Join(r.dist, "redrive")

	t.Run("archive", func(t *testing.T) {
		files := unpack(t, archive)
		for _, path := range []string{"LICENSE", "README.md", "redrive.example.yaml", "shell/man/redrive-serve.1",
			"shell/redrive.bash", "shell/_redrive", "shell/redrive.fish"} {
			if len(files[name+"/"+path]) == 0 {
				t.Errorf("the archive lacks %s", path)
			}
		}
		must(t, os.WriteFile(binary, files[name+"/redrive"], 0o755))
		isStatic(t, binary)
		saysItsVersion(t, binary)
	})
	t.Run("checksums", func(t *testing.T) {
		c := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
		c.Dir = r.dist
		if out, err := c.CombinedOutput(); err != nil || bytes.Count(out, []byte(": OK\n")) != 5 {
			t.Errorf("%v: want five files:\n%s", err, out)
		}
	})
	t.Run("SBOM", func(t *testing.T) { listsItsModules(t, filepath.Join(r.dist, name+".cdx.json")) })
	t.Run("image", func(t *testing.T) {
		hasTheBinary(t, filepath.Join(r.dist, fmt.Sprintf("redrive_%s_image_%s.tar", version, runtime.GOARCH)), binary)
	})
	t.Run("rpm", func(t *testing.T) {
		data, err := os.ReadFile(filepath.Join(r.dist, name+".rpm"))
		if err != nil || !bytes.HasPrefix(data, []byte{0xed, 0xab, 0xee, 0xdb}) ||
			!bytes.Contains(data[:1<<16], []byte("redrive.service")) {
			t.Errorf("this is no package, or has no unit (%v)", err)
		}
	})
	t.Run("deb", func(t *testing.T) {
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
			installed(t, filepath.Join(r.dist, name+".deb"), v)
		})
	})
}

type release struct{ dist string }

// build runs scripts/release for this machine; podman's data is in a folder of the test.
func (r release) build(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	c := exec.Command("scripts/release", "linux/"+runtime.GOARCH)
	c.Dir = root
	c.Env = append(os.Environ(), "VERSION="+version, "DIST="+r.dist,
		"ENGINE=podman --root "+dir+"/storage --runroot "+dir+"/run --tmpdir "+dir+"/tmp --storage-driver vfs --runtime runc --cgroup-manager cgroupfs --events-backend none",
		"BUILDFLAGS=--pull=never --isolation chroot --network host --format docker --ignorefile deploy/Dockerfile.dockerignore")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("scripts/release: %v\n%s", err, out)
	}
}

func unpack(t *testing.T, archive string) map[string][]byte {
	t.Helper()
	f, err := os.Open(archive)
	must(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must(t, err)
	return entries(t, z)
}

// entries are the files of a tar.
func entries(t *testing.T, from io.Reader) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if err == io.EOF {
			return all
		}
		must(t, err)
		all[h.Name], err = io.ReadAll(r)
		must(t, err)
	}
}

func isStatic(t *testing.T, binary string) {
	t.Helper()
	f, err := elf.Open(binary)
	must(t, err)
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool {
		return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC
	}) {
		t.Error("the binary is not static")
	}
	if f.Section(".symtab") != nil || f.Section(".debug_info") != nil {
		t.Error("the binary is not stripped")
	}
}

func saysItsVersion(t *testing.T, binary string) {
	t.Helper()
	out, err := exec.Command(binary, "version", "-o", "json").Output()
	var is struct{ Version, Commit, Date, Go string }
	if err != nil || json.Unmarshal(out, &is) != nil {
		t.Fatalf("redrive version: %v\n%s", err, out)
	}
	commit, err := exec.Command("git", "-C", root, "rev-parse", "HEAD").Output()
	must(t, err)
	if is.Version != version || strings.TrimSuffix(is.Commit, "-changed") != strings.TrimSpace(string(commit)) ||
		is.Date == "" || is.Go == "" {
		t.Errorf("it says %+v, built of commit %s", is, commit)
	}
}

func listsItsModules(t *testing.T, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	var bom struct {
		BOMFormat  string
		Metadata   struct{ Component struct{ Version string } }
		Components []struct{ Name, Version string }
	}
	if err != nil || json.Unmarshal(data, &bom) != nil {
		t.Fatalf("%v\n%.500s", err, data)
	}
	names := map[string]bool{}
	for _, c := range bom.Components {
		names[c.Name] = c.Version != ""
	}
	if bom.BOMFormat != "CycloneDX" || bom.Metadata.Component.Version != "v"+version {
		t.Errorf("it is %s of %s", bom.BOMFormat, bom.Metadata.Component.Version)
	}
	for _, name := range []string{"github.com/rabbitmq/amqp091-go", "github.com/cockroachdb/pebble/v2"} {
		if !names[name] {
			t.Errorf("it lacks %s: %v", name, names)
		}
	}
}

// hasTheBinary: the binary in the image is that of the archive, which has the checksum.
func hasTheBinary(t *testing.T, image, binary string) {
	t.Helper()
	data, err := os.ReadFile(image)
	must(t, err)
	want, err := os.ReadFile(binary)
	must(t, err)
	var found []byte
	for name, layer := range entries(t, bytes.NewReader(data)) {
		if strings.HasSuffix(name, ".tar") && len(layer) > 0 {
			if b := entries(t, bytes.NewReader(layer))["usr/local/bin/redrive"]; b != nil {
				found = b
			}
		}
	}
	if sha256.Sum256(found) != sha256.Sum256(want) {
		t.Errorf("the image has another binary, of %d bytes", len(found))
	}
}

// actionlint is built from the Go module proxy, in a module of its own (tools/actionlint).
func TestTheWorkflows(t *testing.T) {
	onlyLong(t)
	files, err := filepath.Glob("../../.github/workflows/*.yaml")
	if err != nil || len(files) != 2 {
		t.Fatalf("found %q (%v)", files, err)
	}
	program := filepath.Join(t.TempDir(), "actionlint")
	build := exec.Command("go", "-C", root+"/tools/actionlint", "build", "-o", program,
		"github.com/rhysd/actionlint/cmd/actionlint")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building actionlint: %v\n%s", err, out)
	}
	if out, err := exec.Command(program, append([]string{"-no-color"}, files...)...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// `go install …/cmd/redrive@latest` refuses a module that replaces or excludes others.
func TestTheModuleCanBeInstalled(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json", root+"/go.mod").Output()
	var m struct {
		Module           struct{ Path string }
		Replace, Exclude []any
	}
	if err != nil || json.Unmarshal(out, &m) != nil || m.Module.Path != "github.com/redrive-mq/redrive" {
		t.Fatalf("go mod edit: %v\n%s", err, out)
	}
	if len(m.Replace) > 0 || len(m.Exclude) > 0 {
		t.Errorf("go.mod replaces %v and excludes %v", m.Replace, m.Exclude)
	}
}

// TestTheModuleIsInstalled installs it from a proxy of files with what is committed, and its dependencies from this
// machine's cache: nothing is downloaded.
func TestTheModuleIsInstalled(t *testing.T) {
	onlyLong(t)
	dir, cache := t.TempDir(), strings.TrimSpace(run(t, exec.Command("go", "env", "GOMODCACHE")))
	const module = "github.com/redrive-mq/redrive"
	at := filepath.Join(dir, "proxy", module, "@v")
	must(t, os.MkdirAll(at, 0o755))
	for name, content := range map[string]string{"list": "v0.1.0\n", "v0.1.0.info": `{"Version": "v0.1.0"}`,
		"v0.1.0.mod": run(t, exec.Command("git", "-C", root, "show", "HEAD:go.mod"))} {
		must(t, os.WriteFile(filepath.Join(at, name), []byte(content), 0o644))
	}
	// Folders with a go.mod of their own are other modules.
	archive := []string{"-C", root, "archive", "--format=zip", "--prefix=" + module + "@v0.1.0/",
		"--output=" + filepath.Join(at, "v0.1.0.zip"), "HEAD", "."}
	for _, file := range strings.Fields(run(t, exec.Command("git", "-C", root, "ls-files", "*/go.mod"))) {
		archive = append(archive, ":(exclude)"+filepath.Dir(file))
	}
	run(t, exec.Command("git", archive...))
	c := exec.Command("go", "install", module+"/cmd/redrive@v0.1.0")
	c.Dir = dir
	c.Env = append(os.Environ(), "GOBIN="+dir, "GOMODCACHE="+filepath.Join(dir, "modules"), "GONOSUMDB=*",
		"GOSUMDB=off", "GOFLAGS=-modcacherw -trimpath", "GOTOOLCHAIN=local",
		"GOPROXY=file://"+filepath.Join(dir, "proxy")+",file://"+filepath.Join(cache, "cache", "download"))
	run(t, c)
	if said := run(t, exec.Command(filepath.Join(dir, "redrive"), "version", "-o", "name")); said != "v0.1.0\n" {
		t.Errorf("it says that it is %q", said)
	}
}

// run returns what a command prints on standard output.
func run(t *testing.T, c *exec.Cmd) string {
	t.Helper()
	var failed bytes.Buffer
	c.Stderr = &failed
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", c, err, &failed)
	}
	return string(out)
}

// install mounts, over this system, a layer that is gone with the process, installs the package
// there twice, as an upgrade does, and runs what the unit runs, as its user.
const install = `
set -eu
mount -t tmpfs none "$LAYER"
mkdir "$LAYER/upper" "$LAYER/work" "$LAYER/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$LAYER/upper,workdir=$LAYER/work" "$LAYER/root"
mount -t proc proc "$LAYER/root/proc"
cd "$LAYER/root"
cp "$DEB" tmp/redrive.deb
chroot . dpkg --no-triggers --force-depends -i /tmp/redrive.deb
sed -i "s/127.0.0.1:8250/$ADDRESS/" etc/redrive/redrive.yaml
cat "$CONFIG" >> etc/redrive/redrive.yaml
echo "REDRIVE_BROKER_URL=$BROKER" >> etc/redrive/redrive.env
chroot . dpkg --no-triggers --force-depends -i /tmp/redrive.deb
grep -q "$ADDRESS" etc/redrive/redrive.yaml
[ "$(chroot . stat -c '%U %G %a' /etc/redrive/redrive.env)" = "root redrive 640" ]
for file in usr/share/man/man1/redrive-serve.1 usr/share/bash-completion/completions/redrive usr/share/redrive/redrive.example.yaml; do
	[ -s "$file" ] || [ -s "$file.gz" ]
done
if [ -x bin/systemd-analyze ]; then
	chroot . systemd-analyze verify --man=no /usr/lib/systemd/system/redrive.service
fi
unit() { sed -n "s/^$1=-\{0,1\}//p" usr/lib/systemd/system/redrive.service; }
mkdir -p "var/lib/$(unit StateDirectory)"
chroot . chown "$(unit User):$(unit Group)" "/var/lib/$(unit StateDirectory)"
chmod "$(unit StateDirectoryMode)" "var/lib/$(unit StateDirectory)"
set -a
. "./$(unit EnvironmentFile)"
set +a
before=$(unit ExecStartPre)
start=$(unit ExecStart)
as="chroot --userspec=$(unit User):$(unit Group) . env --chdir=$(unit WorkingDirectory)"
$as $before
echo installed now
# What runs as another user is sent no signal when its parent ends; this shell is.
$as $start &
service=$!
trap 'kill -TERM $service' TERM
wait $service || wait $service
`

// installed holds that the service of the package retries and parks a message.
func installed(t *testing.T, deb string, v *brokertest.VHost) {
	dir := t.TempDir()
	config := filepath.Join(dir, "policies.yaml")
	must(t, os.WriteFile(config, []byte("policies: [{name: orders, queues: [orders], attempts: 2, backoff: {fixed: 100ms}}]\n"), 0o600))
	address := brokertest.Address(t)
	// Root, since a package has files of other users; and what it starts ends with it.
	command := []string{"unshare", "--mount", "--pid", "--fork", "--kill-child=TERM", "sh", "-c", install}
	if os.Getuid() != 0 {
		command = append([]string{"sudo", "-n", "--preserve-env=LAYER,DEB,ADDRESS,CONFIG,BROKER"}, command...)
	}
	c := exec.Command(command[0], command[1:]...)
	c.Env = append(os.Environ(), "LAYER="+t.TempDir(), "DEB="+deb, "ADDRESS="+address, "CONFIG="+config,
		"BROKER="+v.ServiceURL(brokertest.Works("orders")))
	log, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	c.Stdout, c.Stderr = log, log
	must(t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	said := func() string { data, _ := os.ReadFile(log.Name()); return string(data) }
	t.Cleanup(func() {
		// unshare itself ignores SIGTERM; killed, it has the service sent one.
		_ = c.Process.Kill()
		<-ended
		brokertest.Eventually(t, "the service has stopped", func() bool {
			return strings.Contains(said(), "redrive has stopped")
		})
		if t.Failed() {
			t.Logf("it says:\n%s", said())
		}
	})

	v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeDeadLetters})
	running := func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("it ended: %v", err)
			return false
		case <-time.After(100 * time.Millisecond):
			return true
		}
	}
	for deadline := time.Now().Add(5 * time.Minute); running() && !strings.Contains(said(), "installed now\n"); {
		if time.Now().After(deadline) {
			t.Fatal("it is not installed after five minutes")
		}
	}
	status := func() string {
		running()
		s := exec.Command(filepath.Join(filepath.Dir(deb), "redrive"), "status", "-o", "json")
		s.Env = append(os.Environ(), "REDRIVE_ADDRESS="+address)
		out, _ := s.Output()
		return strings.ReplaceAll(string(out), " ", "")
	}
	brokertest.Eventually(t, "the service is ready", func() bool { return strings.Contains(status(), `"ready":true`) })
	consumer := v.Consume("orders")
	consumer.Fail("one")
	expect.Equal(t, consumer.Reject().Headers[wire.HeaderAttempt], any(int64(1)), "it came again with attempt")
	brokertest.Eventually(t, "the message is parked", func() bool { return strings.Contains(status(), `"parked":1,`) })
}

var must = expect.NoError
