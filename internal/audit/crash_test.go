package audit

import (
	"bufio"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// However much of what was not yet synced a crash leaves, what was is there, and
// a line tells of the rest; a second crash while that is written changes nothing.
func TestAnythingThatACrashLeavesIsMended(t *testing.T) {
	folder := t.TempDir()
	fill(t, folder, quiet(), 1)
	file := filepath.Join(folder, nameOf(1))
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, folder, quiet(), 2)
	all, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	repaired := func() ([]byte, int) {
		t.Helper()
		fill(t, folder, quiet(), 0)
		r, err := verify(t, folder)
		if err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return now, len(r.Repaired)
	}
	zeros := string(make([]byte, 300))
	for _, left := range []string{"", "x", "\n", "\n\n", "{", "no line\n", "no line\nnor this", zeros, zeros + "\n" + zeros} {
		write(append(kept[:len(kept):len(kept)], left...))
		if _, n := repaired(); (n == 1) != (left != "") {
			t.Errorf("after %.20q: %d places were repaired", left, n)
		}
	}
	for cut := len(kept); cut <= len(all); cut++ {
		write(all[:cut])
		once, n := repaired()
		if lines := all[cut-1] == '\n' || cut < len(all) && all[cut] == '\n'; lines == (n == 1) {
			t.Fatalf("cut to %d of %d bytes: %d places were repaired", cut, len(all), n)
		}
		if n == 1 {
			again := cut + rand.IntN(len(once)-cut)
			write(once[:again])
			if _, n := repaired(); n != 1 {
				t.Fatalf("cut to %d bytes and, repairing, to %d: %d places were repaired", cut, again, n)
			}
		}
	}
	// A file that was only just begun.
	for _, left := range []string{"", "{\"n\":", "no line\n"} {
		write(all)
		last := whole(t, folder, 7).Last
		second := filepath.Join(folder, nameOf(last+1))
		if err := os.WriteFile(second, []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, n := repaired(); n != 1 {
			t.Errorf("a second file with %q: %d places were repaired", left, n)
		}
		if err := os.Remove(second); err != nil {
			t.Fatal(err)
		}
	}
}

const childFolder = "REDRIVE_TEST_AUDIT_FOLDER"

// A process that is killed while it writes has every entry that it was promised.
func TestAKilledProcessKeepsItsEntries(t *testing.T) {
	folder := t.TempDir()
	promised, repaired := map[int64]bool{}, 0
	for life := range 10 {
		child := exec.Command(os.Args[0], "-test.run=^TestChildThatIsKilled$")
		child.Env = append(os.Environ(), childFolder+"="+folder)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		killAt := 1 + rand.IntN(200)
		said, lines := bufio.NewReader(out), 0
		for ; ; lines++ {
			line, err := said.ReadString('\n')
			if err != nil {
				break // a line cut short was not said
			}
			n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			if err != nil || promised[n] {
				t.Fatalf("the child says %q", line)
			}
			promised[n] = true
			if lines == killAt {
				_ = child.Process.Kill()
			}
		}
		if err := child.Wait(); err == nil || lines < killAt {
			t.Fatalf("life %d: the child ended by itself after %d lines: %v", life, lines, err)
		}
	}
	l := openAt(t, folder, quiet())
	r, err := verify(t, folder)
	if err != nil {
		t.Fatal(err)
	}
	repaired += len(r.Repaired)
	if err := l.Before(t.Context(), math.MaxInt64, func(e Entry) (bool, error) { delete(promised, e.N); return true, nil }); err != nil {
		t.Fatal(err)
	}
	if len(promised) != 0 {
		t.Errorf("%d entries that were promised are not there: %v", len(promised), promised)
	}
	t.Logf("%d entries in %d files, repaired in %d places", r.Last, r.Files, repaired)
}

// TestChildThatIsKilled is the other process: it says the number of each entry that
// it was promised, until it is killed.
func TestChildThatIsKilled(t *testing.T) {
	folder := os.Getenv(childFolder)
	if folder == "" {
		t.Skip("only as the child of another test")
	}
	o := quiet()
	o.Rotate = 20_000
	l := openAt(t, folder, o)
	for i := range 8 {
		go func() {
			for {
				e := Entry{Who: "ann", Did: "replay", On: strings.Repeat("x", 10*i)}
				if err := l.add(&e); err != nil {
					panic(err)
				}
				fmt.Printf("%d\n", e.N)
			}
		}()
	}
	select {}
}
