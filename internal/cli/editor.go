package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/redrive-mq/redrive/internal/hint"
)

// privateFile is a file that no one else can read, in a folder that no one else can
// look into: editors put copies beside it.
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

// editor opens a file and waits for its end. It has the terminal, and Ctrl-C in it
// is its own.
func (p *program) editor(file string) error {
	command := p.getenv("VISUAL")
	if command == "" {
		command = p.getenv("EDITOR")
	}
	if command == "" {
		command = "vi"
	}
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
