package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

const (
	// mostOn and mostText bound the texts of a line, in bytes, so that each line fits into memory.
	mostOn   = 512 << 10 // room for the ids of 10,000 messages
	mostText = 4 << 10
	// mostLine is more than any line has: each byte of a text may take six.
	mostLine = 4 << 20
)

// head is where the chain ends.
type head struct {
	n    int64
	hash string
}

// next returns an entry as the line after the head, and the head then.
func (h head) next(e Entry) ([]byte, head, error) {
	e.N, e.Prev, e.Hash = h.n+1, h.hash, ""
	e.At = e.At.UTC()
	e.On = cut(e.On, mostOn)
	for _, s := range []*string{&e.Who, &e.How, &e.From, &e.Interface, &e.Did, &e.Why, &e.Outcome} {
		*s = cut(*s, mostText)
	}
	line, err := json.Marshal(e)
	if err != nil {
		return nil, h, fmt.Errorf("audit: %w", err)
	}
	line = bytes.TrimSuffix(line, []byte(`"}`))
	sum := hashOf(line)
	return append(line, sum+"\"}\n"...), head{e.N, sum}, nil
}

// hashOf is the hash of a line up to where its own hash begins.
func hashOf(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}

var errLine = errors.New("it is no line of an audit log")

// parse reads a line without its line feed. It holds the line to its own hash, not
// to the line before.
func parse(line []byte) (e Entry, err error) {
	at := len(line) - hex.EncodedLen(sha256.Size) - len(`"}`)
	if at < 0 || !bytes.HasSuffix(line[:at], []byte(`,"hash":"`)) || !bytes.HasSuffix(line, []byte(`"}`)) {
		return e, errLine
	}
	if hashOf(line[:at]) != string(line[at:len(line)-len(`"}`)]) {
		return e, errors.New("it was changed: its hash is not that of its content")
	}
	if err := json.Unmarshal(line, &e); err != nil || e.N < 1 {
		return e, errLine
	}
	return e, nil
}

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s… (and %d bytes more)", s[:most], len(s)-most)
}

// repairText describes, in a line of repair, the bytes that a crash left before it.
func repairText(n int64, sum []byte) string {
	return fmt.Sprintf("a crash left %d bytes that are no line, SHA-256 %x", n, sum)
}
