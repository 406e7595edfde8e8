package quarantine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// rescue is a file for a message that RabbitMQ no longer has and that was not kept yet. It is
// created before a message is removed: where none can be created, nothing is removed.
type rescue struct {
	f    *os.File
	used bool // it has a message that is nowhere else
}

// openRescue creates the file in the working directory or else in that for temporary files.
func openRescue() (*rescue, error) {
	f, err := createRescue(".")
	if err != nil {
		var second error
		if f, second = createRescue(os.TempDir()); second != nil {
			return nil, fmt.Errorf("a file is needed, in case that RabbitMQ delivers another message than the one that was kept: %w", errors.Join(err, second))
		}
	}
	return &rescue{f: f}, nil
}

func createRescue(dir string) (*os.File, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "redrive-rescued-*.json") // its mode is 0600
	if err != nil {
		return nil, err
	}
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync() // not every file system can
		_ = d.Close()
	}
	return f, nil
}

// keep writes the message as RabbitMQ's management API gave it, its body in base64, and
// syncs it. lost wraps the error of what fails afterwards, and says where the message is.
func (r *rescue) keep(g management.FetchedMessage) (lost func(error) error) {
	raw, _ := json.Marshal(g) // of JSON, so it cannot fail
	write := func(f *os.File) error {
		_, err := f.Write(append(raw, '\n'))
		return cmp.Or(err, f.Sync())
	}
	err := write(r.f)
	r.used = err == nil
	if err != nil { // as where the disk is full
		if f, second := createRescue(os.TempDir()); second == nil {
			_, _ = r.f.Close(), os.Remove(r.f.Name())
			r.f = f
			r.used = write(f) == nil
		}
	}
	return func(cause error) error {
		if !r.used {
			return fmt.Errorf("RabbitMQ no longer has a message that could not be kept: %w; nor could it be written to a file: %w. This is it, with its body in base64: %s", cause, err, raw)
		}
		return fmt.Errorf("RabbitMQ delivered another message than the one before, and no longer has it: it is in %s, as the management API gave it, with its body in base64; publish it from there: %w", r.f.Name(), cause)
	}
}

// release says that the message is kept elsewhere, so that Close removes the file.
func (r *rescue) release() { r.used = false }

// Close removes a file that nothing needs.
func (r *rescue) Close() {
	_ = r.f.Close()
	if !r.used {
		_ = os.Remove(r.f.Name())
	}
}
