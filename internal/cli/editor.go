package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/redrive-mq/redrive/internal/hint"
)

// privateFile makes a file that no one else can read, in a folder of its own that no one else can
// read: editors put copies beside it.
func privateFile(text, suffix string) (file string, remove func(), err error) {
	folder, err := os.MkdirTemp("", "redrive-edit-") // 0700
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(folder) }
	file = filepath.Join(folder, "message"+suffix)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		remove()
		return "", nil, err
	}
	return file, remove, nil
}

// editor opens a file in the person's editor and waits for its end. The editor has the terminal, and
// handles Ctrl-C itself.
func (p *program) editor(file string) error {
	command := cmp.Or(p.getenv("VISUAL"), p.getenv("EDITOR"), "vi")
	var c *exec.Cmd
	if sh, err := exec.LookPath("sh"); err == nil { // "code --wait", as git takes it
		c = exec.Command(sh, "-c", command+` "$1"`, command, file)
	} else {
		words := strings.Fields(command)
		c = exec.Command(words[0], append(words[1:], file)...)
	}
	// Not data: what an editor draws must not get into a pipe.
	c.Stdin, c.Stdout, c.Stderr = p.in, p.err, p.err
	if err := c.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return fmt.Errorf("the editor %q ended with %s: nothing was sent", command, exit.ProcessState)
		}
		return hint.Errorf("set EDITOR, or give --body-file", "the editor %q: %w", command, err)
	}
	return nil
}
