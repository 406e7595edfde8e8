package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// nameOf is the file whose first line has number n. Names sort as numbers do.
func nameOf(n int64) string { return fmt.Sprintf("audit-%012d.jsonl", n) }

// firstOf is the number in a file's name.
func firstOf(path string) (int64, bool) {
	name, ok := strings.CutPrefix(filepath.Base(path), "audit-")
	name, ok2 := strings.CutSuffix(name, ".jsonl")
	n, err := strconv.ParseInt(name, 10, 64)
	return n, ok && ok2 && err == nil && n > 0
}

// Files returns the files of the log in a folder, oldest first; of a file, itself. A file that
// was renamed is found by its first line: without it the log would continue as if its entries
// had never been.
func Files(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	all, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	files := map[int64]string{} // by the number of their first entry
	type misnamed struct {
		path  string
		first Entry
	}
	var renamed []misnamed
	for _, f := range all {
		at := filepath.Join(path, f.Name())
		byName, isNamed := firstOf(at)
		e, isLog := Entry{}, false
		if f.Type().IsRegular() {
			e, isLog = firstIn(at)
		}
		switch {
		case isLog && (!isNamed || e.N != byName):
			renamed = append(renamed, misnamed{at, e})
		case isNamed: // Verify says what is wrong with its first line
			files[byName] = at
		}
	}
	// A renamed file that begins where another ends is of this log; one that begins within
	// another is a copy of a part. In order, since a renamed file may continue a renamed one.
	slices.SortFunc(renamed, func(a, b misnamed) int { return cmp.Compare(a.first.N, b.first.N) })
	for _, x := range renamed {
		if files[x.first.N] == "" && (x.first.N == 1 || follows(x.first, files)) {
			files[x.first.N] = x.path
		} else if n, isNamed := firstOf(x.path); isNamed && files[n] == "" {
			files[n] = x.path // Verify says what is wrong with it
		}
	}
	var inOrder []string
	for _, n := range slices.Sorted(maps.Keys(files)) {
		inOrder = append(inOrder, files[n])
	}
	return inOrder, nil
}

// follows tells whether the last entry of one of the files is the one before e.
func follows(e Entry, files map[int64]string) bool {
	for n, path := range files {
		if n >= e.N {
			continue
		}
		if last, err := lastIn(path); err == nil && last.N == e.N-1 && last.Hash == e.Prev {
			return true
		}
	}
	return false
}

// lastIn is the last entry of a file; one without a number where there is none.
func lastIn(path string) (last Entry, err error) {
	f, err := os.Open(path)
	if err != nil {
		return last, err
	}
	defer f.Close()
	size, err := sizeOf(path)
	if err != nil {
		return last, err
	}
	last, _, err = lastBefore(f, size)
	return last, err
}

// lastBefore is the last entry in the first size bytes of a file, and where it ends.
func lastBefore(f io.ReaderAt, size int64) (last Entry, end int64, err error) {
	err = backwards(f, size, func(line []byte, at int64) (bool, error) {
		e, err := parse(line)
		if err != nil {
			return true, nil
		}
		last, end = e, at+int64(len(line))+1
		return false, nil
	})
	return last, end, err
}

// firstIn is the first entry in a file that is of an audit log.
func firstIn(path string) (e Entry, ok bool) {
	f, err := os.Open(path)
	if err != nil {
		return e, false
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, mostLine)).ReadBytes('\n')
	if err != nil {
		return e, false
	}
	e, err = parse(bytes.TrimSuffix(line, []byte("\n")))
	return e, err == nil
}

// rename gives files their own names again, in two steps, since they may have each other's. After
// a crash in between, Files finds them.
func (l *Log) rename(files []string) error {
	own := map[int]string{} // the name of files[i], where it has another
	for i, path := range files {
		e, isLog := firstIn(path)
		if named, ok := firstOf(path); !isLog || ok && named == e.N {
			continue
		}
		own[i] = filepath.Join(l.folder, nameOf(e.N))
		files[i] = own[i] + ".renamed"
		if err := os.Rename(path, files[i]); err != nil {
			return err
		}
		l.log.Warn("a file of the audit log was renamed; it has its own name again", "was", path, "is", own[i])
	}
	for i, name := range own {
		if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s and %s both begin with the same entry, or the first is damaged: put one of them elsewhere (%v)", name, files[i], err)
		}
		if err := os.Rename(files[i], name); err != nil {
			return err
		}
		files[i] = name
	}
	return nil
}

// load finds where the chain ends, and repairs the end of the last file.
func (l *Log) load() error {
	files, err := Files(l.folder)
	if err != nil {
		return err
	}
	if err := l.rename(files); err != nil {
		return err
	}
	l.files = files
	if len(files) == 0 {
		return l.begin()
	}
	last := files[len(files)-1]
	if l.file, err = l.open(last); err != nil {
		return err
	}
	size, err := sizeOf(last)
	if err != nil {
		return err
	}
	if size, err = l.finish(size); err != nil {
		return err
	}
	good, err := l.lastLine(size)
	if err != nil {
		return err
	}
	if l.end, l.until = size, size; good == size && size > 0 {
		return nil
	}
	rest := sha256.New()
	if _, err := io.Copy(rest, io.NewSectionReader(l.file, good, size-good)); err != nil {
		return err
	}
	line, h, err := l.head.next(Entry{At: time.Now(), Did: didRepair, On: repairText(size-good, rest.Sum(nil)), Outcome: "done"})
	if err != nil {
		return err
	}
	l.log.Warn("the audit log ended within a line, as after a crash; a line tells of it", "file", last, "bytes", size-good)
	return l.append(append([]byte("\n"), line...), h)
}

// finish adds the line feed to a last line that lacks only that, and returns the size of the file
// then.
func (l *Log) finish(size int64) (int64, error) {
	end := make([]byte, min(size, mostLine))
	if _, err := l.file.ReadAt(end, size-int64(len(end))); err != nil {
		return 0, err
	}
	if _, err := parse(end[bytes.LastIndexByte(end, '\n')+1:]); err != nil {
		return size, nil
	}
	if _, err := l.file.WriteAt([]byte("\n"), size); err != nil {
		return 0, err
	}
	return size + 1, l.file.Sync()
}

// lastLine sets the head to the last line that is whole, and returns where it ends
// in the last file: 0 when it is in the one before.
func (l *Log) lastLine(size int64) (end int64, err error) {
	last, end, err := lastBefore(l.file, size)
	for _, path := range slices.Backward(l.files[:len(l.files)-1]) {
		if last.N > 0 || err != nil {
			break
		}
		last, err = lastIn(path)
	}
	l.head = head{last.N, last.Hash}
	return end, err
}

// begin begins the next file, whose first line goes on with the chain.
func (l *Log) begin() error {
	path := filepath.Join(l.folder, nameOf(l.head.n+1))
	on := "a new log"
	if len(l.files) > 0 {
		on = "after " + filepath.Base(l.files[len(l.files)-1])
	}
	line, h, err := l.head.next(Entry{At: time.Now(), Did: didStart, On: on, Outcome: "done"})
	if err != nil {
		return err
	}
	f, err := l.open(path)
	if err != nil {
		return fmt.Errorf("beginning a file of the audit log: %w", err)
	}
	// A file of this name can only be what is left of a beginning that failed.
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(line, 0)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = syncFolder(l.folder)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("beginning a file of the audit log: %w", err), f.Close(), os.Remove(path))
	}
	if l.file != nil {
		_ = l.file.Close() // all of it is synced
	}
	l.file, l.head, l.end = f, h, int64(len(line))
	l.mu.Lock()
	l.files, l.until = append(slices.Clone(l.files), path), l.end
	l.mu.Unlock()
	return nil
}

// syncFolder makes a new file's name durable.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func sizeOf(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
