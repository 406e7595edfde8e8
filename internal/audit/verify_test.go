package audit

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func quiet() Options { return Options{Log: slog.New(slog.DiscardHandler)} }

func openAt(t *testing.T, folder string, o Options) *Log {
	t.Helper()
	l, err := Open(folder, o)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// fill writes n actions with their outcomes, and closes.
func fill(t *testing.T, folder string, o Options, n int) {
	t.Helper()
	l := openAt(t, folder, o)
	for i := range n {
		done, err := l.Begin(Entry{Who: "ann", How: "rabbitmq", From: "10.0.0.7", Interface: "cli", Did: "replay", On: fmt.Sprintf("queue:orders.%d", i), Why: "<fixed> & \u2028 \"deployed\""})
		must(t, err)
		done("done", int64(i))
	}
	must(t, l.Close())
}

func verify(t *testing.T, folder string) (Report, error) {
	t.Helper()
	files, err := Files(folder)
	must(t, err)
	return Verify(files, Expected{})
}

func whole(t *testing.T, folder string, last int64) Report {
	t.Helper()
	r, err := verify(t, folder)
	if err != nil || r.First != 1 || r.Last != last {
		t.Fatalf("%+v, %v; want entries 1 to %d", r, err, last)
	}
	return r
}

func TestALogGoesOnOverRestartsAndFiles(t *testing.T) {
	folder := t.TempDir()
	fill(t, folder, quiet(), 3)
	whole(t, folder, 7)
	o := quiet()
	o.Rotate = 600 // every other line
	fill(t, folder, o, 3)
	files, err := Files(folder)
	must(t, err)
	n := 12 + len(files) // an action and its outcome each, and a line to begin each file
	r := whole(t, folder, int64(n))
	if r.Files < 3 || len(r.Repaired) != 0 {
		t.Errorf("%+v", r)
	}
	l := openAt(t, folder, o)
	if l.head.mark() != r.Mark {
		t.Errorf("the mark is %s, and was %s", l.head.mark(), r.Mark)
	}
	var all, some []Entry
	must(t, l.Before(t.Context(), math.MaxInt64, func(e Entry) (bool, error) { all = append(all, e); return true, nil }))
	for i, e := range all {
		if e.N != int64(n-i) {
			t.Fatalf("entry %d comes at place %d of %d", e.N, i, len(all))
		}
	}
	if err := l.Before(t.Context(), 9, func(e Entry) (bool, error) { some = append(some, e); return len(some) < 3, nil }); err != nil || !slices.Equal(some, all[n-8:n-5]) {
		t.Errorf("before 9 come %v, %v", some, err)
	}
	all = slices.DeleteFunc(all, func(e Entry) bool { return e.Did == didStart })
	if len(all) != 12 || all[0].Of != all[1].N || all[0].Outcome != "done" || all[1].Outcome != "begun" || all[1].Why == "" {
		t.Errorf("the newest of %d are %+v, %+v", len(all), all[0], all[1])
	}
	stop := errors.New("stop")
	if err := l.Before(t.Context(), math.MaxInt64, func(Entry) (bool, error) { return true, stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// Every single byte counts: whichever is changed, in whichever way, it is found, and
// so is a file that ends anywhere but after a line.
func TestEveryChangedByteIsFound(t *testing.T) {
	folder := t.TempDir()
	fill(t, folder, quiet(), 2)
	file := filepath.Join(folder, nameOf(1))
	was, err := os.ReadFile(file)
	must(t, err)
	// Written in place: a file that is cut to nothing and closed would be put on the disk each time.
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	write := func(part []byte, at int) {
		t.Helper()
		if _, err := f.WriteAt(part, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	broken := func() *Broken {
		t.Helper()
		_, err := verify(t, folder)
		var b *Broken
		if err != nil && !errors.As(err, &b) {
			t.Fatal(err)
		}
		return b
	}
	for i := range was {
		line := 1 + bytes.Count(was[:i], []byte("\n"))
		for bit := range 8 {
			write([]byte{was[i] ^ 1<<bit}, i)
			if b := broken(); b == nil || b.Line != line {
				t.Fatalf("byte %d (%q, in line %d) with bit %d changed: %v", i, was[i], line, bit, b)
			}
		}
		must(t, f.Truncate(int64(i)))
		if b := broken(); b == nil && (i == 0 || was[i-1] != '\n') {
			t.Fatalf("cut to %d bytes: nothing is found", i)
		}
		write(was[i:], i)
	}
	if b := broken(); b != nil {
		t.Fatalf("unchanged: %v", b)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	template := t.TempDir()
	o := quiet()
	o.Rotate = 1000
	fill(t, template, o, 6)
	files, err := Files(template)
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	r := whole(t, template, int64(12+len(files)))
	for name, c := range map[string]struct {
		change func(lines [][]byte) [][]byte // of the second file
		line   int
		want   string
	}{
		"a line missing":    {func(l [][]byte) [][]byte { return slices.Delete(l, 1, 2) }, 2, "what was between is missing"},
		"a line twice":      {func(l [][]byte) [][]byte { return slices.Insert(l, 2, l[1]) }, 3, "repeated or out of order"},
		"lines swapped":     {func(l [][]byte) [][]byte { l[1], l[2] = l[2], l[1]; return l }, 2, "what was between is missing"},
		"a line between":    {func(l [][]byte) [][]byte { return slices.Insert(l, 1, []byte("hello\n")) }, 2, "no line of an audit log"},
		"the first missing": {func(l [][]byte) [][]byte { return l[1:] }, 1, "what was between is missing"},
		"a count changed":   {func(l [][]byte) [][]byte { l[1] = bytes.Replace(l[1], []byte("ann"), []byte("bob"), 1); return l }, 2, "its hash is not that of its content"},
		"a line of another log": {func(l [][]byte) [][]byte {
			e, _ := parse(bytes.TrimSuffix(l[1], []byte("\n")))
			e.Who = "bob"
			l[1], _, _ = head{e.N - 1, e.Prev}.next(e)
			return l
		}, 3, "one of them was replaced"},
		"nothing":         {func([][]byte) [][]byte { return nil }, 1, "the file is empty"},
		"no end":          {func(l [][]byte) [][]byte { l[2] = l[2][:20]; return l[:3] }, 3, "it was cut off"},
		"one endless one": {func([][]byte) [][]byte { return [][]byte{bytes.Repeat([]byte("x"), mostLine+1)} }, 1, "longer than any line"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			must(t, os.CopyFS(folder, os.DirFS(template)))
			file := filepath.Join(folder, filepath.Base(files[1]))
			data, err := os.ReadFile(file)
			must(t, err)
			data = bytes.Join(c.change(bytes.SplitAfter(bytes.TrimSuffix(data, nil), []byte("\n"))), nil)
			must(t, os.WriteFile(file, data, 0o600))
			_, err = verify(t, folder)
			var b *Broken
			if !errors.As(err, &b) || b.Line != c.line || b.File != file || !strings.Contains(b.Why, c.want) {
				t.Errorf("it says %v, want line %d: %s", err, c.line, c.want)
			}
		})
	}
	t.Run("files", func(t *testing.T) {
		first, _ := firstOf(files[1])
		for name, c := range map[string]struct {
			files []string
			want  Expected
			err   string
		}{
			"all":                    {files, Expected{Mark: r.Mark}, ""},
			"the first put away":     {files[1:], Expected{From: first}, ""},
			"the first missing":      {files[1:], Expected{}, fmt.Sprintf("--from %d", first)},
			"one between missing":    {slices.Concat(files[:1], files[2:]), Expected{}, "what was between is missing"},
			"the last missing":       {files[:len(files)-1], Expected{Mark: r.Mark}, "the log was cut off"},
			"none":                   {nil, Expected{}, "there is no audit log here"},
			"another mark":           {files, Expected{Mark: "5:" + strings.Repeat("0", 64)}, "rewritten"},
			"no mark":                {files, Expected{Mark: "5"}, "is not a mark"},
			"a mark of what is away": {files[1:], Expected{From: first, Mark: "1:" + strings.Repeat("0", 64)}, "not all its files"},
		} {
			if _, err := Verify(c.files, c.want); err == nil && c.err != "" || err != nil && (c.err == "" || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%s: it says %v, want %q", name, err, c.err)
			}
		}
	})
}

func FuzzVerify(f *testing.F) {
	line, h, _ := head{}.next(Entry{Did: didStart})
	more, _, _ := h.next(Entry{Did: "pause"})
	f.Add(append(line, more...), 0)
	f.Fuzz(func(t *testing.T, data []byte, _ int) {
		file := filepath.Join(t.TempDir(), nameOf(1))
		must(t, os.WriteFile(file, data, 0o600))
		_, _ = Verify([]string{file}, Expected{})
		_ = backwards(bytes.NewReader(data), int64(len(data)), func([]byte, int64) (bool, error) { return true, nil })
	})
}

// A log whose newest file has another name would go on from an older entry, and a
// deleted stretch would not show.
func TestARenamedFileIsFound(t *testing.T) {
	template := t.TempDir()
	o := quiet()
	o.Rotate = 1000
	fill(t, template, o, 6)
	files, err := Files(template)
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	all := whole(t, template, int64(12+len(files)))
	last := len(files) - 1
	for name, renamed := range map[string]map[int]string{
		"the newest":        {last: "old.txt"},
		"the oldest":        {0: filepath.Base(files[0]) + ".bak"},
		"one between":       {1: "audit-1.jsonl.orig"},
		"with wrong number": {0: nameOf(9999), last: nameOf(1)},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			must(t, os.CopyFS(folder, os.DirFS(template)))
			for i, to := range renamed { // by way of names that none has
				must(t, os.Rename(filepath.Join(folder, filepath.Base(files[i])), filepath.Join(folder, "x"+to)))
			}
			for _, to := range renamed {
				must(t, os.Rename(filepath.Join(folder, "x"+to), filepath.Join(folder, to)))
			}
			if r := whole(t, folder, all.Last); r.Mark != all.Mark || r.Files != len(files) {
				t.Errorf("%+v, want %+v", r, all)
			}
			fill(t, folder, o, 1)
			whole(t, folder, all.Last+3) // an action, its outcome, and the line that begins a file
			for _, f := range files {
				if _, err := os.Stat(filepath.Join(folder, filepath.Base(f))); err != nil {
					t.Errorf("it has not its own name again: %v", err)
				}
			}
		})
	}
	copied := filepath.Join(template, "backup.jsonl")
	data, err := os.ReadFile(files[1])
	must(t, err)
	must(t, os.WriteFile(copied, data, 0o600))
	// An extract, made to be read, is no file of the log.
	if at := bytes.IndexByte(data, '\n') + 1; at < len(data) {
		must(t, os.WriteFile(filepath.Join(template, "extract.jsonl"), data[at:], 0o600))
	}
	whole(t, template, all.Last)
	fill(t, template, o, 1)
	whole(t, template, all.Last+3)
}

// must ends a test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
