package doctor_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/rabbitmq/doctor"
	"github.com/redrive-mq/redrive/internal/rabbitmq/version"
	"github.com/redrive-mq/redrive/internal/server"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/testenv/subprocess"
)

// setup is something wrong, made for real. The doctor must name it; what it prints is run, exactly
// as it is printed; then the doctor must say nothing of it any more.
type setup struct {
	check, queue string // of the finding
	status       doctor.Status
	says         string // in its What
	makes        func(*site)
	// person does what the commands leave to people; nil: nothing.
	person func(*site)
	// from and before are versions of RabbitMQ, major and minor; 0: any.
	from, before [2]int
	// scene changes what was gathered, for what a test cannot make.
	scene func(*doctor.Scene)
	after bool // it changes also what was gathered after the repair
	// silent: it has no command.
	silent bool
}

func (u *setup) is(f doctor.Finding) bool {
	return f.Check == u.check && f.Queue == u.queue && f.Status == u.status && strings.Contains(f.What, u.says)
}

func (u *setup) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s of %s %s: …%s…", u.status, u.check, u.queue, u.says))
}

// in tells whether a version of RabbitMQ is one for it.
func (u *setup) in(of string) bool {
	at := func(v [2]int) bool { yes, _ := version.AtLeast(of, v[0], v[1]); return yes }
	return at(u.from) && (u.before == [2]int{} || !at(u.before))
}

// site is a virtual host with the config of a service, and a shell with our command.
type site struct {
	*brokertest.VHost
	t      *testing.T
	node   *rabbitnode.Node
	dir    string // has redrive, redrive.yaml and quarantine.jsonl
	yaml   string // redrive.yaml, but for what is the same for all
	url    string // broker.url
	manage string // broker.management; "": that of the virtual host
	listen string
	asked  bool // the service is asked
	redis  string
	env    []string
	conns  map[string]*amqp.Connection // of clients, by a name
	ran    *commandsRun
}

// commandsRun are the commands that cases ran, by check.
type commandsRun struct {
	mu            sync.Mutex
	seen          map[string][]string
	trials, tried int
}

func (r *commandsRun) count(n *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
}

func (r *commandsRun) add(check, command string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[check] = append(r.seen[check], command)
}

const everyQueue = `policies: [{name: p, queues: ["*"], attempts: 8, backoff: {fixed: 1m}}]`

func newSite(t *testing.T, of *brokertest.VHost, node *rabbitnode.Node, yaml string, ran *commandsRun) *site {
	t.Helper()
	s := &site{VHost: brokertest.NewVHost(t, of.Broker), t: t, node: node, dir: t.TempDir(), yaml: cmp.Or(yaml, everyQueue), ran: ran, conns: map[string]*amqp.Connection{}}
	s.url = s.URL()
	ports, err := subprocess.Ports(1)
	s.must(err)
	s.listen = fmt.Sprintf("127.0.0.1:%d", ports[0])
	self, err := os.Executable()
	s.must(err)
	s.must(os.Symlink(self, filepath.Join(s.dir, "redrive")))
	s.must(os.Mkdir(filepath.Join(s.dir, "store"), 0o700))
	s.env = append(os.Environ(), "PATH="+s.dir+":"+os.Getenv("PATH"), "REDRIVE_ADDRESS="+s.listen, "CURL_CA_BUNDLE="+os.Getenv("SSL_CERT_FILE"))
	return s
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) file() string { return filepath.Join(s.dir, "redrive.yaml") }

// config writes the file, and reads it.
func (s *site) config() *config.Config {
	s.t.Helper()
	store := fmt.Sprintf("{disk: %s, reserve: 32MiB}", filepath.Join(s.dir, "store"))
	if s.redis != "" {
		store = fmt.Sprintf("{disk: %s, redis: {url: %q}}", filepath.Join(s.dir, "store"), s.redis)
	}
	text := fmt.Sprintf("broker: {url: %q, management: %q}\nlisten: %s\nstore: %s\n%s\n", s.url, cmp.Or(s.manage, s.Management), s.listen, store, s.yaml)
	s.must(os.WriteFile(s.file(), []byte(text), 0o600))
	c, err := config.Load(s.file(), func(string) string { return "" })
	s.must(err)
	return c
}

func (s *site) gather() *doctor.Scene {
	s.t.Helper()
	o := doctor.Options{Config: s.config(), File: s.file(), Standing: 3 * time.Second, Held: 3 * time.Second, Insecure: slices.Contains(s.env, "REDRIVE_INSECURE=1")}
	o.Redis = func(ctx context.Context) ([]redisstore.Server, bool, error) { return server.SurveyRedis(ctx, o.Config) }
	if s.asked {
		o.Service, o.Named = "http://"+s.listen, true
	}
	scene, err := doctor.Gather(context.Background(), o)
	s.must(err)
	return scene
}

func (s *site) report(changes ...func(*doctor.Scene)) doctor.Report {
	s.t.Helper()
	scene := s.gather()
	for _, change := range changes {
		change(scene)
	}
	return doctor.Examine(scene)
}

// notOK are the findings of a report that are not ok, a line each.
func notOK(r doctor.Report) string {
	var b strings.Builder
	for _, f := range r.Findings {
		if f.Status != doctor.OK {
			fmt.Fprintf(&b, "%s %s %s: %s\n", f.Status, f.Check, f.Queue, f.What)
		}
	}
	return b.String()
}

// tries makes set-ups of one virtual host, and repairs them.
func (s *site) tries(all []setup) {
	s.t.Helper()
	var scenes, after []func(*doctor.Scene)
	for i := range all {
		if all[i].makes != nil {
			all[i].makes(s)
		}
		if all[i].scene != nil {
			if scenes = append(scenes, all[i].scene); all[i].after {
				after = append(after, all[i].scene)
			}
		}
	}
	// What the doctor found last, for each.
	found := make([]*doctor.Finding, len(all))
	var last doctor.Report
	until := func(what string, is func() bool) {
		s.t.Helper()
		deadline := time.Now().Add(90 * time.Second)
		for !is() {
			if time.Now().After(deadline) {
				for i := range all {
					if (found[i] == nil) == (what == "named") {
						s.t.Errorf("not %s: %s", what, &all[i])
					}
				}
				s.t.Fatalf("the doctor says:\n%s", notOK(last))
			}
			<-time.After(300 * time.Millisecond)
		}
	}
	look := func(scenes ...func(*doctor.Scene)) (n int) {
		last = s.report(scenes...)
		for i := range all {
			found[i] = nil
			if j := slices.IndexFunc(last.Findings, all[i].is); j >= 0 {
				found[i] = &last.Findings[j]
				n++
			}
		}
		return n
	}
	until("named", func() bool { return look(scenes...) == len(all) })
	var ended []func()
	for i, f := range found {
		if f.Why == "" || f.Remedy == "" && len(f.Commands) == 0 {
			s.t.Errorf("%s: why %q, remedy %q", &all[i], f.Why, f.Remedy)
		}
		if (len(f.Commands) == 0) != all[i].silent {
			s.t.Errorf("%s: it prints %q", &all[i], f.Commands)
		}
		for _, c := range f.Commands {
			if end := s.runs(f.Check, c); end != nil {
				ended = append(ended, end)
			}
		}
		if all[i].person != nil {
			all[i].person(s)
		}
	}
	until("repaired", func() bool { return look(after...) == 0 })
	for _, end := range ended {
		end()
	}
}

// runs runs a command as it stands there: those of RabbitMQ as its administrator, ours as a person
// who says yes. It returns how to end one that runs on.
func (s *site) runs(check, line string) (end func()) {
	s.t.Helper()
	s.ran.add(check, line)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	failed := func(err error, out string) {
		if err != nil {
			s.t.Errorf("%s\n%v\n%s", line, err, out)
		}
	}
	program, _, _ := strings.Cut(line, " ")
	switch {
	case strings.HasPrefix(program, "rabbitmq"):
		typed := line
		if strings.HasPrefix(line, "rabbitmqctl authenticate_user") {
			typed = "echo " + brokertest.ServicePassword + " | " + line // it asks for it
		}
		out, err := s.node.Shell(ctx, typed)
		failed(err, out)
	case program == "curl": // asks for a password, and reads it from its input where there is no terminal
		c := exec.CommandContext(ctx, "/bin/bash", "-c", line+" --fail-with-body --silent --show-error")
		c.Stdin, c.Env, c.SysProcAttr = strings.NewReader("guest\n"), s.env, &syscall.SysProcAttr{Setsid: true}
		out, err := c.CombinedOutput()
		failed(err, string(out))
	case strings.HasPrefix(line, "redrive serve"):
		return s.serves(line)
	default:
		out, err := s.atTerminal(ctx, line)
		var exit *exec.ExitError
		if strings.HasPrefix(line, "redrive doctor --fix") && errors.As(err, &exit) && (exit.ExitCode() == cli.ExitPartly || exit.ExitCode() == cli.ExitPrecondition) {
			err = nil // what other set-ups have
		}
		failed(err, out)
	}
	return nil
}

// serves runs a service in the background.
func (s *site) serves(line string) (end func()) {
	out := &brokertest.Output{}
	c := exec.Command("/bin/bash", "-c", "exec "+line)
	c.Env, c.Dir, c.Stdout, c.Stderr = s.env, s.dir, out, out
	p, err := subprocess.Start(c, s.dir)
	s.must(err)
	s.t.Cleanup(func() {
		p.Kill()
		if s.t.Failed() {
			s.t.Logf("the service said:\n%s", out)
		}
	})
	return func() { p.Kill() }
}

// atTerminal runs a line in a shell at a terminal, and answers yes to whatever is asked.
func (s *site) atTerminal(ctx context.Context, line string) (string, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer master.Close()
	var number, unlocked int32
	for request, value := range map[uintptr]*int32{syscall.TIOCGPTN: &number, syscall.TIOCSPTLCK: &unlocked} {
		if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, master.Fd(), request, uintptr(unsafe.Pointer(value))); e != 0 {
			return "", e
		}
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer terminal.Close()
	if _, err := master.WriteString(strings.Repeat("y\n", 20)); err != nil {
		return "", err
	}
	out := &brokertest.Output{}
	c := exec.CommandContext(ctx, "/bin/bash", "-c", line)
	c.Stdin, c.Stdout, c.Stderr, c.Env, c.Dir = terminal, out, out, s.env, s.dir
	err = c.Run()
	return fmt.Sprint(out), err
}
