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

	"github.com/redrive-mq/redrive/testenv/brokertest"
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
		for _, path := range []string{"LICENSE", "README.md", "redrive.example.yaml", "shell/man/redrive-serve.1", "shell/redrive.bash", "shell/_redrive", "shell/redrive.fish"} {
			if len(files[name+"/"+path]) == 0 {
				t.Errorf("the archive lacks %s", path)
			}
		}
		if err := os.WriteFile(binary, files[name+"/redrive"], 0o755); err != nil {
			t.Fatal(err)
		}
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
		if err != nil || !bytes.HasPrefix(data, []byte{0xed, 0xab, 0xee, 0xdb}) || !bytes.Contains(data[:1<<16], []byte("redrive.service")) {
			t.Errorf("this is no package, or has no unit (%v)", err)
		}
	})
	t.Run("deb", func(t *testing.T) {
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) { installed(t, filepath.Join(r.dist, name+".deb"), v) })
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
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		if all[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func isStatic(t *testing.T, binary string) {
	t.Helper()
	f, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC }) {
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
	if err != nil {
		t.Fatal(err)
	}
	if is.Version != version || strings.TrimSuffix(is.Commit, "-changed") != strings.TrimSpace(string(commit)) || is.Date == "" || is.Go == "" {
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
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
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
