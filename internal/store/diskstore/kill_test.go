package diskstore_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

const childFolder = "REDRIVE_TEST_CHILD_FOLDER"

// A process that is killed while it adds and finishes leaves all it was promised, and
// an account of its changes that says what was changed.
func TestAKilledProcessLosesNothingThatWasPromised(t *testing.T) {
	path := t.TempDir()
	added, under, ended := map[string]bool{}, map[string]bool{}, map[string]bool{}
	changed := 0
	for life := range 20 {
		child := exec.Command(os.Args[0], "-test.run=^TestChildThatIsKilled$")
		child.Env = append(os.Environ(), fmt.Sprintf("%s=%s", childFolder, path))
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		killAt := 1 + rand.IntN(150)
		t.Logf("life %d: killed after %d lines", life, killAt)
		said := bufio.NewReader(out)
		lines := 0
		for ; ; lines++ {
			line, err := said.ReadString('\n')
			if err != nil {
				break // a line cut short was not said
			}
			switch body := strings.TrimSpace(line[1:]); line[0] {
			case '+':
				added[body] = true
			case '~':
				under[body] = true
			case '-':
				ended[body] = true
			default:
				t.Errorf("the child says %q", line)
			}
			if lines == killAt {
				_ = child.Process.Kill()
			}
		}
		if err := child.Wait(); err == nil || lines < killAt {
			t.Fatalf("the child ended by itself after %d lines: %v", lines, err)
		}
		kept := map[string]bool{}
		for body := range added {
			if !under[body] {
				kept[body] = true
			}
		}
		s := openAt(t, path, diskstore.Options{Reserve: 1})
		check(t, s, kept, ended)
		err = s.Entries(ctx, "moved/", "", func(store.Entry) (bool, error) { changed++; return false, nil })
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if changed == 0 {
		t.Error("no change survived, so its account shows nothing")
	}
	if len(ended) == 0 || len(added) == len(ended) {
		t.Errorf("%d added and %d finished show nothing", len(added), len(ended))
	}
}

// TestChildThatIsKilled is the other process: it adds (+), finishes (~ before, -
// after), and changes, and says what it was promised, until it is killed.
func TestChildThatIsKilled(t *testing.T) {
	path := os.Getenv(childFolder)
	if path == "" {
		t.Skip("only as the child of another test")
	}
	s := openAt(t, path, diskstore.Options{Reserve: 1})
	say := func(sign string, bodies []string) {
		for _, b := range bodies {
			fmt.Println(sign + b)
		}
	}
	go func() {
		for {
			claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, time.Now().Add(1e6*time.Hour), 2, 1<<20)
			if err != nil {
				panic(err)
			}
			if len(claims) == 0 {
				<-s.Changed()
				continue
			}
			var out []store.Outcome
			var bodies []string
			for _, c := range claims {
				out = append(out, store.Outcome{Claim: c})
				bodies = append(bodies, string(c.Record.Message.Body))
			}
			say("~", bodies)
			if _, err := s.Finish(ctx, out); err != nil {
				panic(err)
			}
			say("-", bodies)
		}
	}()
	go func() {
		for {
			if err := mutate(s, rand.IntN); err != nil {
				panic(err)
			}
		}
	}()
	for n := 0; ; n++ {
		var batch []*store.Record
		var bodies []string
		for i := range 1 + rand.IntN(20) {
			body := fmt.Sprintf("%d-%d-%d", os.Getpid(), n, i)
			bodies = append(bodies, body)
			batch = append(batch, storetest.Waiting("q", time.Duration(i)*time.Second, body))
		}
		if err := s.Add(ctx, batch); err != nil {
			t.Fatal(err)
		}
		say("+", bodies)
	}
}
