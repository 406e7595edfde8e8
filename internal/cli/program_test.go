package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/hint"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md")

// reference is all commands, as their --help has them.
func reference(c *cobra.Command) string {
	var b strings.Builder
	if c.Runnable() && (c.Parent() != nil) {
		long := c.Long
		if long == "" {
			long = c.Short + "."
		}
		fmt.Fprintf(&b, "### %s\n\n```\n%s\n```\n\n%s\n\n", c.CommandPath(), c.UseLine(), long)
		if c.Example != "" {
			fmt.Fprintf(&b, "```sh\n%s\n```\n\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
		}
		c.InitDefaultHelpFlag()
		for _, name := range []string{"help", "address", "ca-file"} { // said once, above
			if f := c.Flags().Lookup(name); f != nil {
				f.Hidden = true
			}
		}
		if flags := c.LocalFlags().FlagUsages(); strings.TrimSpace(flags) != "" {
			fmt.Fprintf(&b, "```\n%s```\n\n", flags)
		}
	}
	for _, sub := range c.Commands() {
		b.WriteString(reference(sub))
	}
	return b.String()
}

func TestTheReference(t *testing.T) {
	const file, begin = "../../docs/reference/cli.md", "<!-- go test ./internal/cli -run TestTheReference -update writes what follows -->\n"
	root := Commands()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, is, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("%s has no place for the reference", file)
	}
	want := "\n```\n" + exitCodes + "\n```\n\n" + strings.TrimSuffix(reference(root), "\n")
	switch {
	case is == want:
	case *update:
		if err := os.WriteFile(file, []byte(before+begin+want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from the commands: go test ./internal/cli -run TestTheReference -update writes it", file)
	}
	for _, c := range root.Commands() {
		if !strings.Contains(before, "redrive "+c.Name()) && c.Name() != "help" {
			t.Errorf("%s does not mention redrive %s before the reference", file, c.Name())
		}
	}
}

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

func TestAVersionComesFromTheReleaseOrFromWhatGoRecords(t *testing.T) {
	recorded := &debug.BuildInfo{Main: debug.Module{Version: "v1.4.0"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc123"}, {Key: "vcs.time", Value: "2026-11-01T10:00:00Z"}}}
	folder := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	release := Build{Version: "1.4.0", Commit: "def456", Date: "2026-11-02T10:00:00Z"}
	for name, c := range map[string]struct {
		set  Build
		info *debug.BuildInfo
		want Build
	}{
		"release":                 {release, recorded, release},
		"go install":              {Build{}, recorded, Build{Version: "v1.4.0", Commit: "abc123", Date: "2026-11-01T10:00:00Z"}},
		"go build without commit": {Build{}, folder, Build{Version: "dev"}},
		"nothing recorded":        {Build{}, nil, Build{Version: "dev"}},
	} {
		c.want.Go, c.want.System = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
		if got := c.set.complete(c.info); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestMemoryOfTheCgroup(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"container":      {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "134217728\n"}, 128 << 20},
		"no limit":       {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		"unit":           {map[string]string{"proc/self/cgroup": "0::/system.slice/redrive.service\n", "sys/fs/cgroup/system.slice/redrive.service/memory.max": "67108864\n"}, 64 << 20},
		"slice of units": {map[string]string{"proc/self/cgroup": "0::/a.slice/redrive.service\n", "sys/fs/cgroup/a.slice/memory.max": "1000\n", "sys/fs/cgroup/a.slice/redrive.service/memory.max": "2000\n"}, 1000},
		"large slice":    {map[string]string{"proc/self/cgroup": "0::/a.slice/redrive.service\n", "sys/fs/cgroup/a.slice/memory.max": "3000\n", "sys/fs/cgroup/a.slice/redrive.service/memory.max": "2000\n"}, 2000},
		"version 1":      {map[string]string{"proc/self/cgroup": "5:cpu:/x\n4:memory:/x\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "5000\n"}, 5000},
		"no cgroups":     {nil, 0},
	} {
		files := fstest.MapFS{}
		for path, text := range c.files {
			files[path] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := cgroupMemory(files); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestWatchShowsItAgainUntilItIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var out, errOut bytes.Buffer
		p := &program{out: &out, err: &errOut}
		begun, times := time.Now(), 0
		err := p.repeat(ctx, 2*time.Second, func() error {
			times++
			switch times {
			case 2:
				return errors.New("no service answers")
			case 4:
				stop()
			}
			fmt.Fprintln(&out, times)
			return nil
		})
		if err != nil || out.String() != "1\n3\n4\n" || !strings.Contains(errOut.String(), "no service answers") {
			t.Errorf("%v, %q, %q", err, &out, &errOut)
		}
		if took := time.Since(begun); took != 6*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestWatchEndsWhereTheFirstAnswerIsAnError(t *testing.T) {
	p := &program{out: new(bytes.Buffer), err: new(bytes.Buffer)}
	want := errors.New("unknown queue")
	if err := p.repeat(t.Context(), time.Hour, func() error { return want }); !errors.Is(err, want) {
		t.Error(err)
	}
}
