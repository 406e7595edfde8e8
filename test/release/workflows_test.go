package release_test

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// actionlint is built from the Go module proxy, in a module of its own (tools/actionlint).
func TestTheWorkflows(t *testing.T) {
	onlyLong(t)
	files, err := filepath.Glob("../../.github/workflows/*.yaml")
	if err != nil || len(files) != 2 {
		t.Fatalf("found %q (%v)", files, err)
	}
	program := filepath.Join(t.TempDir(), "actionlint")
	build := exec.Command("go", "-C", root+"/tools/actionlint", "build", "-o", program, "github.com/rhysd/actionlint/cmd/actionlint")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building actionlint: %v\n%s", err, out)
	}
	if out, err := exec.Command(program, append([]string{"-no-color"}, files...)...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
