package howto_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redrive-mq/redrive/docs/commandline"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// script is a page whose commands are run as they are printed. It knows which are left.
type script struct {
	page string
	mu   sync.Mutex      // scenes run side by side
	left map[string]bool // by line; false: it was run
}

func scriptOf(t *testing.T, page string) *script {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{page: page, left: map[string]bool{}}
	for _, c := range commandline.Commands(string(text)) {
		line, _, _ := strings.Cut(c.Line, "  ") // and a comment
		s.left[line] = true
	}
	t.Cleanup(func() { // after all scenes
		for line, left := range s.left {
			if left && !t.Failed() {
				t.Errorf("%s: no scene runs %s", s.page, line)
			}
		}
	})
	return s
}

// scene is a place where commands of a page are run.
type scene struct {
	*testing.T
	v       *brokertest.VHost
	script  *script
	program string
	service *servertest.Service // that is asked; nil: none runs
	config  string              // the file of REDRIVE_CONFIG
}

func (s *script) scene(t *testing.T, v *brokertest.VHost, program, yaml string) *scene {
	t.Helper()
	file := filepath.Join(t.TempDir(), "redrive.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return &scene{T: t, v: v, script: s, program: program, config: file}
}

// run runs a command of the page, with what replaces its placeholders: pairs of old and new, and
// then perhaps an argument that the page leaves out. It must succeed.
func (s *scene) run(line string, replace ...string) string {
	s.Helper()
	out, err := s.try(line, replace...)
	if err != nil {
		s.Fatalf("%s: %v\n%s", line, err, out)
	}
	return out
}

// try is run for a command that may fail.
func (s *scene) try(line string, replace ...string) (string, error) {
	s.Helper()
	out, err := s.command(s.Context(), line, replace...).CombinedOutput()
	return string(out), err
}

// command prepares a command of the page.
func (s *scene) command(ctx context.Context, line string, replace ...string) *exec.Cmd {
	s.Helper()
	s.script.mu.Lock()
	_, printed := s.script.left[line]
	if s.script.left[line] = false; !printed {
		s.Errorf("%s does not print %s", s.script.page, line)
	}
	s.script.mu.Unlock()
	words, err := commandline.Words(line)
	if err != nil {
		s.Fatal(err)
	}
	more := len(replace) % 2
	for i := range words {
		words[i] = strings.NewReplacer(replace[:len(replace)-more]...).Replace(words[i])
	}
	words = append(words, replace[len(replace)-more:]...)
	// What a page asks about, the test says yes to: there is no terminal.
	if slices.Contains([]string{"enroll", "replay", "discard", "restore"}, words[1]) && !slices.Contains(words, "--dry-run") {
		words = append(words, "--yes")
	}
	c := exec.CommandContext(ctx, s.program, words[1:]...)
	c.Env = append(os.Environ(), "REDRIVE_BROKER_URL="+s.v.URL(), "REDRIVE_MANAGEMENT_URL="+s.v.Management, "REDRIVE_CONFIG="+s.config)
	if s.service != nil {
		c.Env = append(c.Env, "REDRIVE_ADDRESS="+s.service.Client.Addr)
	}
	return c
}

// has checks what a command printed.
func (s *scene) has(out string, wants ...string) {
	s.Helper()
	for _, want := range wants {
		if !strings.Contains(out, want) {
			s.Errorf("%q is not in\n%s", want, out)
		}
	}
}

// looks runs a command whose exit code tells of what is wrong, too.
func (s *scene) looks(line string, replace ...string) string {
	s.Helper()
	out, err := s.try(line, replace...)
	if err != nil && err.Error() != "exit status 3" && err.Error() != "exit status 5" {
		s.Fatalf("%s: %v\n%s", line, err, out)
	}
	return out
}
