package audit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
)

// Before visits entries from the one before number n on, the newest first, until visit
// says that it has enough, visit fails, or ctx ends. It reads no more of the files than that
// takes. What is no line is left out: it shows, and does not verify.
func (l *Log) Before(ctx context.Context, n int64, visit func(Entry) (more bool, err error)) error {
	l.mu.Lock()
	files, until := l.files, l.until
	l.mu.Unlock()
	more := true
	for i := len(files) - 1; i >= 0 && more; i-- {
		if first, _ := firstOf(files[i]); first >= n {
			continue
		}
		f, err := os.Open(files[i])
		if errors.Is(err, os.ErrNotExist) {
			return nil // a person has put old files elsewhere
		}
		if err != nil {
			return err
		}
		end := until
		if i < len(files)-1 {
			end, err = sizeOf(files[i])
		}
		if err == nil {
			err = backwards(f, end, func(line []byte, _ int64) (bool, error) {
				if err := ctx.Err(); err != nil {
					return false, err
				}
				e, err := parse(line)
				if err != nil || e.N >= n {
					return true, nil
				}
				more, err = visit(e)
				return more, err
			})
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// backwards visits the whole lines of the first end bytes of a file, the last one
// first, without their line feeds; what follows the last line feed is no line, and
// neither is what is longer than any. The line is visit's during the call.
func backwards(f io.ReaderAt, end int64, visit func(line []byte, at int64) (more bool, err error)) error {
	const piece = 64 << 10
	var have []byte // what is read and not yet visited, from at on
	whole := false  // have ends where a line ends
	tooLong := false
	for at := end; at > 0; {
		n := min(piece, at)
		at -= n
		b := make([]byte, n, n+int64(len(have)))
		if _, err := f.ReadAt(b, at); err != nil {
			return err
		}
		have = append(b, have...)
		for {
			i := bytes.LastIndexByte(have, '\n')
			if i < 0 {
				break
			}
			line := have[i+1:]
			have = have[:i]
			if whole && !tooLong {
				if more, err := visit(line, at+int64(i)+1); !more || err != nil {
					return err
				}
			}
			whole, tooLong = true, false
		}
		if len(have) > mostLine {
			have, tooLong = nil, true
		}
	}
	if whole && !tooLong {
		_, err := visit(have, 0)
		return err
	}
	return nil
}
