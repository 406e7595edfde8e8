package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strconv"
	"strings"
)

// Expected is what is known of a log from elsewhere.
type Expected struct {
	// From is the number of the first line that must be there; 0 is 1. Set it where
	// older files were put elsewhere.
	From int64
	// Mark, when not empty, is a line that the log must have: see Report.Mark.
	Mark string
}

// Report is what a log that is whole consists of.
type Report struct {
	Files       int
	First, Last int64
	Mark        string // of the last line
	// Repaired are the places where crashes left what is no line.
	Repaired []string
}

// Broken is the first line that is wrong.
type Broken struct {
	File string
	Line int   // in its file, from 1
	N    int64 // the number it should have
	Why  string
}

func (b *Broken) Error() string {
	return fmt.Sprintf("%s:%d (entry %d): %s", b.File, b.Line, b.N, b.Why)
}

// Verify follows the chain through files, oldest first. Its error is a *Broken for the first line
// that is wrong, or that a file cannot be read; the report then covers what is whole before it.
func Verify(files []string, want Expected) (Report, error) {
	v := verifier{report: Report{Files: len(files)}, from: max(want.From, 1)}
	if want.Mark != "" {
		n, hash, ok := strings.Cut(want.Mark, ":")
		number, err := strconv.ParseInt(n, 10, 64)
		if !ok || err != nil || number < 1 || len(hash) != 2*sha256.Size {
			return v.report, fmt.Errorf("%q is not a mark; expected a line's number and hash, as in 57:ab12…", want.Mark)
		}
		v.mark = head{number, hash}
	}
	if len(files) == 0 {
		return v.report, errors.New("there is no audit log here: expected files named audit-….jsonl")
	}
	for i, path := range files {
		if err := v.file(path, i == len(files)-1); err != nil {
			return v.report, err
		}
	}
	if v.mark.n > v.last.n || v.mark.n > 0 && v.mark.n < v.report.First {
		return v.report, v.broken("entry %d of the mark is not here: the log was cut off, or these are not all its files", v.mark.n)
	}
	return v.report, nil
}

type verifier struct {
	report Report
	from   int64
	mark   head
	last   head // of the chain so far
	path   string
	line   int
}

func (v *verifier) broken(format string, args ...any) error {
	return &Broken{File: v.path, Line: v.line, N: v.last.n + 1, Why: fmt.Sprintf(format, args...)}
}

func (v *verifier) file(path string, last bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := sizeOf(path)
	if err != nil {
		return err
	}
	v.path, v.line = path, 0
	var rest leftover
	for lines := bufio.NewReaderSize(io.LimitReader(f, size), int(min(size+1, mostLine))); ; {
		text, err := lines.ReadSlice('\n')
		if v.line++; err == io.EOF && len(text) == 0 {
			break
		}
		line, whole := bytes.CutSuffix(text, []byte("\n"))
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			err = v.broken("it is longer than any line of an audit log")
		case err != nil && err != io.EOF:
			return err
		case !whole && last:
			err = v.broken("the file ends within the line: it was cut off, a crash came and the service has not started since, or it is just being written (then verify again)")
		case !whole:
			err = v.broken("the file ends within the line: it was cut off")
		default:
			err = v.next(line, rest)
		}
		switch {
		case err == nil:
			rest = leftover{}
		case rest.err == nil && whole:
			rest = leftover{err: err, sum: sha256.New()}
			rest.add(line)
		case rest.err == nil:
			return err
		case !whole:
			return rest.err
		default:
			rest.add(line)
		}
	}
	if rest.err == nil && v.line == 1 {
		return v.broken("the file is empty")
	}
	return rest.err
}

// leftover is what does not continue the chain, from its first line on: an error, unless a line of
// repair follows that describes it.
type leftover struct {
	err   error
	sum   hash.Hash
	n     int64 // bytes, without the last line feed
	lines int
}

func (r *leftover) add(line []byte) {
	if r.lines > 0 {
		r.sum.Write([]byte("\n"))
		r.n++
	}
	r.sum.Write(line)
	r.n += int64(len(line))
	r.lines++
}

// next checks that a line continues the chain.
func (v *verifier) next(line []byte, rest leftover) error {
	e, err := parse(line)
	if err != nil {
		return v.broken("%v", err)
	}
	first := v.last.n == 0
	switch {
	case first && e.N != v.from:
		return v.broken("it is entry %d, and the log should begin with %d: what was before it is not here (if it was put elsewhere, say --from %d)", e.N, v.from, e.N)
	case first && v.from == 1 && e.Prev != "":
		return v.broken("it is the first entry and names one before it")
	case !first && e.N > v.last.n+1:
		return v.broken("it is entry %d: what was between is missing", e.N)
	case !first && e.N < v.last.n+1:
		return v.broken("it is entry %d: an older line, repeated or out of order", e.N)
	case !first && e.Prev != v.last.hash:
		return v.broken("its hash of the line before is not that of the line before: one of them was replaced")
	case v.line == 1 && e.Did != didStart && e.Did != didRepair:
		return v.broken("a file begins with it, and it does not say so: what was before it is missing")
	case e.N == v.mark.n && e.Hash != v.mark.hash:
		return v.broken("it is not the line of the mark: the log was rewritten")
	case rest.err != nil && (e.Did != didRepair || e.On != repairText(rest.n, rest.sum.Sum(nil))):
		return rest.err
	}
	if rest.err != nil {
		v.report.Repaired = append(v.report.Repaired, fmt.Sprintf("%s:%d (entry %d): %s", v.path, v.line, e.N, e.On))
	}
	if first {
		v.report.First = e.N
	}
	v.last = head{e.N, e.Hash}
	v.report.Last, v.report.Mark = e.N, v.last.mark()
	return nil
}
