package cli

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/redrive-mq/redrive/internal/hint"
)

// Each of several errors has its hint below it, and neither obeys a terminal's control.
func TestHintsAreOnLinesOfTheirOwn(t *testing.T) {
	var b bytes.Buffer
	p := &program{err: &b}
	p.printError(fmt.Errorf("start: %w", hint.Errorf("stop the other\x1b[2J one", "the folder is in use")))
	p.printError(errors.Join(hint.Errorf("set a", "a is missing"), errors.New("b is missing"), hint.Errorf("set c", "c is missing")))
	p.printError(fmt.Errorf("both: %w", errors.Join(errors.New("a\nb"), nil)))
	const want = "redrive: start: the folder is in use\n  hint: stop the other\ufffd[2J one\n" +
		"redrive: a is missing\n  hint: set a\nredrive: b is missing\nredrive: c is missing\n  hint: set c\nredrive: both: a\nredrive: b\n"
	if got := b.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
