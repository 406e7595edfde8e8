// Package image_test builds deploy/Dockerfile with podman, which needs no daemon, and
// runs what comes out. Nothing is pulled: the image that it begins with is made here, of
// the Go that runs the test, so what Docker's own would add is not tried.
package image_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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
	return &podman{t, []string{"--root", filepath.Join(dir, "storage"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
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
	if err != nil {
		p.t.Fatal(err)
	}
	w := tar.NewWriter(f)
	add := func(h tar.Header, from string) {
		var data []byte
		if from != "" {
			if data, err = os.ReadFile(from); err != nil {
				p.t.Fatal(err)
			}
			h.Typeflag, h.Size = tar.TypeReg, int64(len(data))
		}
		if err := w.WriteHeader(&h); err != nil {
			p.t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			p.t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin/", "etc/", "etc/ssl/", "etc/ssl/certs/", "go/", "root/", "tmp/", "usr/", "usr/local/", "usr/local/go/"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, "")
	}
	add(tar.Header{Name: "bin/busybox", Mode: 0o755}, "/bin/busybox")
	for _, name := range []string{"sh", "mkdir"} {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: "busybox"}, "")
	}
	add(tar.Header{Name: "etc/ssl/certs/ca-certificates.crt", Mode: 0o644}, authorities)
	if err := w.Close(); err != nil {
		p.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		p.t.Fatal(err)
	}
	p.run("import", "--change", "ENV PATH=/usr/local/go/bin:/bin", "--change", "ENV GOTOOLCHAIN=local",
		"--change", "ENV GOPROXY=off", "--change", "ENV GOMODCACHE=/modules", "--change", "ENV GOCACHE=/built", file, "localhost/"+name)
}

const authorities = "/etc/ssl/certs/ca-certificates.crt"

// goEnv is a variable of the Go that runs the test.
func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// content is what is in an image, by path, as a container of it begins.
func (p *podman) content(image string) map[string]*tar.Header {
	p.t.Helper()
	container := p.run("create", image)
	defer p.run("rm", "--force", "--volumes", container)
	c := p.command("export", container)
	out, err := c.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		p.t.Fatal(err)
	}
	all := map[string]*tar.Header{}
	for r := tar.NewReader(out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			p.t.Fatal(err)
		}
		all[strings.TrimSuffix(h.Name, "/")] = h
	}
	if err := c.Wait(); err != nil {
		p.t.Fatal(err)
	}
	return all
}
