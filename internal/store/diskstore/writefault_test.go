package diskstore_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

const childFault = "REDRIVE_TEST_CHILD_FAULT"

// logFaults are the operations on the log that may fail.
var logFaults = map[string][]errorfs.OpKind{
	"write": {errorfs.OpFileWrite},
	"sync":  {errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo},
}

// When the log cannot be written the process says so and ends, before anything is
// promised. What was promised is there afterwards; the batch that
// failed is there whole or not at all.
func TestALogThatCannotBeWrittenEndsTheProcess(t *testing.T) {
	for fault := range logFaults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			path := t.TempDir()
			child := exec.Command(os.Args[0], "-test.run=^TestChildWhoseDiskFails$")
			child.Env = append(os.Environ(), childFolder+"="+path, childFault+"="+fault)
			var out, said bytes.Buffer
			child.Stdout, child.Stderr = &out, &said
			var exit *exec.ExitError
			if err := child.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("the child ended with %v, want exit code 1", err)
			}
			if !strings.Contains(said.String(), "the disk failed; ending") || !strings.Contains(said.String(), syscall.EIO.Error()) {
				t.Errorf("the child said only:\n%s", said.String())
			}
			kept, whole := map[string]bool{}, map[string]bool{}
			for lines := bufio.NewScanner(&out); lines.Scan(); {
				body := lines.Text()
				if kept[body] = true; !strings.HasPrefix(body, "added") {
					t.Errorf("the child went on: %q", body)
				}
			}
			if len(kept) != 3*10 {
				t.Errorf("%d messages were promised, want 30", len(kept))
			}
			s := openAt(t, path, diskstore.Options{Reserve: 1})
			defer s.Close()
			check(t, s, kept, nil)
			page, err := storetest.List(context.Background(), s, storetest.Filter{Body: true, Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range page.Records {
				if body := string(l.Record.Message.Body); !kept[body] {
					whole[body] = true
				}
			}
			if len(whole) != 0 && len(whole) != 10 {
				t.Errorf("of the batch that failed %d of 10 are there", len(whole))
			}
		})
	}
}

// TestChildWhoseDiskFails is the other process: it says what it was promised.
func TestChildWhoseDiskFails(t *testing.T) {
	path, fault := os.Getenv(childFolder), os.Getenv(childFault)
	if path == "" || fault == "" {
		t.Skip("only as the child of another test")
	}
	var broken atomic.Bool
	disk := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		for _, kind := range logFaults[fault] {
			if broken.Load() && op.Kind == kind && filepath.Ext(op.Path) == ".log" {
				return syscall.EIO
			}
		}
		return nil
	}))
	s := openAt(t, path, diskstore.Options{FS: disk, Reserve: 1})
	add := func(name string) error {
		var batch []*store.Record
		for i := range 10 {
			batch = append(batch, storetest.Waiting("q", 0, fmt.Sprint(name, "-", i)))
		}
		err := s.Add(context.Background(), batch)
		for _, r := range batch {
			if err == nil {
				fmt.Println(string(r.Message.Body))
			}
		}
		return err
	}
	for i := range 3 {
		if err := add(fmt.Sprint("added-", i)); err != nil {
			t.Fatal(err)
		}
	}
	broken.Store(true)
	err := add("failed")
	fmt.Println("went on after", err)
}

// What fails in the background, or before anything was written, leaves the store
// in use: nothing was promised, and nothing that was is lost.
func TestAStoreLivesOnAfterOtherWriteErrors(t *testing.T) {
	const batches, size = 30, 1 << 20 // more than a memtable, so that a table is written
	for _, c := range []struct {
		name  string
		kind  errorfs.OpKind
		ext   string
		fails bool // Add says so
	}{
		{"making a table", errorfs.OpCreate, ".sst", false},
		{"writing a table", errorfs.OpFileWrite, ".sst", false},
		{"syncing a table", errorfs.OpFileSyncData, ".sst", false},
		{"asking for room", errorfs.OpGetDiskUsage, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var armed, hit atomic.Bool
			base := vfs.NewMem()
			disk := errorfs.Wrap(roomy{base}, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == c.kind && filepath.Ext(op.Path) == c.ext && armed.CompareAndSwap(true, false) {
					hit.Store(true)
					return syscall.EIO
				}
				return nil
			}))
			s := openAt(t, "data", diskstore.Options{FS: disk})
			armed.Store(true)
			kept, failed := map[string]bool{}, 0
			for i := range batches {
				body := fmt.Sprintf("%08d%s", i, strings.Repeat("x", size))
				err := s.Add(context.Background(), []*store.Record{storetest.Waiting("q", 0, body)})
				if err == nil {
					kept[body] = true
				} else if failed++; !errors.Is(err, syscall.EIO) {
					t.Error(err)
				}
			}
			for range 2 {
				check(t, s, kept, nil)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = openAt(t, "data", diskstore.Options{FS: disk})
			}
			defer s.Close()
			check(t, s, kept, nil)
			if !hit.Load() {
				t.Error("nothing failed, so this shows nothing")
			}
			if want := map[bool]int{true: 1}[c.fails]; failed != want {
				t.Errorf("Add failed %d times, want %d", failed, want)
			}
		})
	}
}
