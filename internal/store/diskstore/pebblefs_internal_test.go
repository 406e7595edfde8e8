package diskstore

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Tables that are written, or read from begin to end, give way; the log, and who
// looks something up, never wait.
func TestTablesGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newPebbleFS(vfs.NewMem())
		check := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		rested := func(piece func() error) time.Duration {
			began := time.Now()
			const pieces, each = 100, 200 * time.Microsecond
			for range pieces {
				time.Sleep(each) // of fake time: what the piece takes
				check(piece())
			}
			return time.Since(began) - pieces*each
		}
		made, err := fs.Create("000001.sst", vfs.WriteCategoryUnspecified)
		check(err)
		write := func(f vfs.File) func() error {
			return func() error { _, err := f.Write(make([]byte, 100)); return err }
		}
		if rested(write(made)) == 0 {
			t.Error("a table is written without a rest")
		}
		check(made.Close())
		log, err := fs.Create("000002.log", vfs.WriteCategoryUnspecified)
		check(err)
		if d := rested(write(log)); d != 0 {
			t.Errorf("the log waited %v", d)
		}
		check(log.Close())
		read := func(options ...vfs.OpenOption) time.Duration {
			f, err := fs.Open("000001.sst", options...)
			check(err)
			defer f.Close()
			return rested(func() error { _, err := f.ReadAt(make([]byte, 100), 0); return err })
		}
		if read(vfs.SequentialReadsOption) == 0 {
			t.Error("a table is read from begin to end without a rest")
		}
		if d := read(vfs.RandomReadsOption); d != 0 {
			t.Errorf("who looks something up waited %v", d)
		}
	})
}
