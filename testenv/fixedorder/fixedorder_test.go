package fixedorder_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/redrive-mq/redrive/testenv/fixedorder"
)

func TestANumberDecidesTheOrder(t *testing.T) {
	folder := t.TempDir()
	overlay, err := fixedorder.Overlay(folder)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(folder, "race.test")
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-tags=fixedorder", "-overlay="+overlay, "-o", program, "./testdata/race").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(order int) string {
		c := exec.Command(program)
		c.Env = append(os.Environ(), "GOMAXPROCS=1", fmt.Sprint("ORDER=", order))
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	first := run(1)
	for range 10 {
		if again := run(1); again != first {
			t.Errorf("order 1 gives two runs:\n%s\n%s", first, again)
		}
	}
	if other := run(2); other == first {
		t.Errorf("order 2 is the same:\n%s", other)
	}
}
