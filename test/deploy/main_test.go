// Package deploy_test holds the Helm chart and the Compose file of deploy/ to what
// would read them: Helm's engine, Kubernetes' own types and validation, the Prometheus
// operator's types, the Compose specification, promtool, and `redrive check`. It is a
// module of its own, since these are heavy and no one else needs them.
package deploy_test

import (
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// redrive is the program of this tree.
var redrive string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	log.SetOutput(io.Discard) // Helm tells of the chart's links at each load
	dir, err := os.MkdirTemp("", "redrive-deploy-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	redrive = filepath.Join(dir, "redrive")
	build := exec.Command("go", "build", "-trimpath", "-o", redrive, "./cmd/redrive")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building redrive: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// check is what `redrive check` says of a config file that nothing is wrong with.
func check(t *testing.T, config string, env ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "redrive.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(redrive, "check", "--no-files", file)
	c.Env = env
	var warnings strings.Builder
	c.Stderr = &warnings
	out, err := c.Output()
	if err != nil || warnings.Len() > 0 {
		t.Fatalf("redrive check: %v\n%s%s\nof\n%s", err, out, &warnings, config)
	}
	return string(out)
}

// promtool runs Prometheus's own checks.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	name := "promtool"
	if dir := os.Getenv("REDRIVE_PROMETHEUS"); dir != "" {
		name = filepath.Join(dir, name)
	}
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("this needs Prometheus: run `make test`, or `make install-prometheus` once (%v)", err)
	}
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
