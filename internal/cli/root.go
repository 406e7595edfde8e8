// Package cli is the command line. Read it in this order:
//
//	root.go     all commands, and how they end
//	connect.go  which service they ask, and which messages they mean
//	output.go   data as a table, JSON, YAML, CSV or names; foreign text; again and again
//	act.go      acts on queues, and on messages that are named
//	operate.go  acts on all messages that a query finds, or that are in a queue that is adopted
//	messages.go and a file for each other group of commands
package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	_ "net/http/pprof"
	"net/netip"
	"os"
	"path"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/query"
)

// program has what the commands share.
type program struct {
	build  Build
	in     io.Reader
	out    io.Writer // data
	err    io.Writer // all else
	getenv func(string) string
	query  string // of the command, for an error that points into it
	// Flags that several commands have.
	address, caFile string
	named           bool   // the service's address is given
	vhost           string // "": the first that is served; of doctor all
	config          string // the path of the config file; "": none
	format          string // --output; "": a table
	wide            bool   // --wide: tables may be wider than the terminal
	yes             bool   // confirm does not ask
	watching        bool   // --watch: what it shows may still change
	settled         bool   // follow a replay until it is no longer counted what fails again
}

// Run runs the command line args and returns its exit code.
func Run(ctx context.Context, args []string, out, errOut io.Writer, build Build) int {
	info, _ := debug.ReadBuildInfo()
	p := &program{build: build.complete(info), in: os.Stdin, out: out, err: errOut, getenv: os.Getenv}
	root := p.root()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	p.printError(err)
	return codeOf(err)
}

// Commands returns the command line, for its manual pages and completions.
func Commands() *cobra.Command {
	return (&program{getenv: func(string) string { return "" }}).root()
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "redrive",
		Short: "Retries failed RabbitMQ messages, and parks those that keep failing",
		Long: `Redrive retries failed RabbitMQ messages with backoff, and parks those that keep
failing, where people can see and replay them.

Data goes to standard output, everything else to standard error.

` + exitCodes,
		Version:       p.build.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.PersistentFlags().StringVar(&p.vhost, "vhost", "",
		"which of several virtual hosts; left out: that of broker.url")
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if _, chooses := c.Annotations[choosesVHost]; p.vhost != "" && !chooses {
			return fmt.Errorf("%s is not about one virtual host: leave --vhost out: %w", c.CommandPath(), errUsage)
		}
		return nil
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		var invalid *pflag.InvalidValueError
		if errors.As(err, &invalid) {
			flag := invalid.GetFlag()
			if expected := map[string]string{"int": "a whole number", "float64": "a number",
				"duration": "a time such as 30s"}[flag.Value.Type()]; expected != "" {
				return fmt.Errorf("%s: --%s %q: expected %s: %w", c.CommandPath(), flag.Name, invalid.GetValue(),
					expected, errUsage)
			}
		}
		remedy := ""
		if strings.Contains(c.Use, "QUERY") {
			remedy = " (a query that begins with - comes after --)"
		}
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			var names []string
			c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
			near, begun := hint.Nearest(unknown.GetSpecifiedName(), names), unknown.GetSpecifiedName()+"-"
			if i := slices.IndexFunc(names, func(s string) bool { return strings.HasPrefix(s, begun) }); i >= 0 {
				near = names[i]
			}
			if near != "" {
				remedy = fmt.Sprintf(" (did you mean --%s?)", near)
			}
		}
		return fmt.Errorf("%s: %v%s: %w", c.CommandPath(), err, remedy, errUsage)
	})
	for _, part := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"see", "See:", []*cobra.Command{p.status(), p.messages(), p.groups(), p.queues(), p.ledger(), p.open(),
			p.decode()}},
		{"act", "Act:", append(p.verbs(), p.edit(), p.pause(), p.resume(), p.breaker(),
			p.adopt(), p.unadopt(), p.allowReplays(), p.ops(), p.export(), p.importing())},
		{"service", "The service:", []*cobra.Command{p.serve(), p.check(), p.rules(), p.simulate(), p.notify(),
			p.login(), p.logout(), p.token(), p.audit(), p.snapshot(), p.store(), p.demo(), p.versionCommand()}},
		{"rabbitmq", "RabbitMQ:", []*cobra.Command{p.enroll(), p.unenroll(), p.move(), p.topology(), p.doctor(),
			p.permissions()}},
	} {
		root.AddGroup(&cobra.Group{ID: part.id, Title: part.title})
		for _, c := range part.commands {
			c.GroupID = part.id
			root.AddCommand(c)
		}
	}
	root.AddCommand(queryTopic())
	root.SetHelpFunc(func(c *cobra.Command, _ []string) {
		fmt.Fprint(c.OutOrStdout(), helpText(c, min(p.tableOn(c.OutOrStdout()).width, lineWidth)))
	})
	return completed(helpFails(commandGroup(root)))
}

// helpFails makes `help` fail for an unknown command; cobra would print the general help and exit with 0.
func helpFails(root *cobra.Command) *cobra.Command {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	show := help.Run
	help.Args = cobra.ArbitraryArgs
	help.Run, help.RunE = nil, func(c *cobra.Command, args []string) error {
		if of, rest, _ := root.Find(args); of.HasSubCommands() {
			if err := of.ValidateArgs(rest); err != nil {
				return err
			}
		}
		show(c, args)
		return nil
	}
	return root
}

// queryTopic is a help topic, not a command.
func queryTopic() *cobra.Command {
	text := "A query is a list of terms; a message matches when all of them do.\n"
	for _, of := range query.Help() {
		text += fmt.Sprintf("\n  %-31s  %s", of[0], of[1])
	}
	return &cobra.Command{Use: "query", Short: "How queries are written", Long: text}
}

// helpText is the help of a command, in lines of so many characters at most, but for commands to copy; 0: as it is.
func helpText(c *cobra.Command, width int) string {
	text := cmp.Or(c.Long, c.Short) + "\n\n"
	if strings.Contains(c.Use, "QUERY") {
		text += "How queries are written: redrive help query\n\n"
	}
	if !c.IsAdditionalHelpTopicCommand() {
		text += c.UsageString()
	}
	if width == 0 {
		return text
	}
	var out, paragraph strings.Builder
	for line := range strings.Lines(text + "\n") {
		line = strings.TrimRight(line, "\n")
		if line != "" && line[0] != ' ' {
			paragraph.WriteString(line + " ")
			continue
		}
		for _, s := range wrapped(strings.TrimSpace(paragraph.String()), width) {
			fmt.Fprintln(&out, s)
		}
		paragraph.Reset()
		head := described.FindString(line)
		lines := wrapped(line[len(head):], width-len(head))
		if head == "" {
			lines = []string{line}
		}
		for _, s := range lines {
			fmt.Fprintln(&out, head+s)
			head = strings.Repeat(" ", len(head))
		}
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

// described matches a flag or command in a help text, up to its description.
var described = regexp.MustCompile(`^ +\S.*?\S {2,}`)

// commandGroup adds commands to c, and makes it refuse any other: cobra would show the help and call that a success.
func commandGroup(c *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	c.AddCommand(commands...)
	c.SuggestionsMinimumDistance = 2
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint, near := "", c.SuggestionsFor(args[0])
		if other := otherwise[args[0]]; other != "" && !c.HasParent() {
			near = []string{other}
		}
		if len(near) > 0 {
			hint = fmt.Sprintf(" (did you mean %q?)", near[0])
		}
		return fmt.Errorf("%s has no command %q%s: %w", c.CommandPath(), args[0], hint, errUsage)
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

// otherwise maps words that people try to the commands that they mean.
var otherwise = map[string]string{"tail": "messages tail", "list": "messages list", "show": "messages show",
	"count": "messages count", "why": "messages show ID", "explain": "messages show ID", "watch": "status --watch",
	"operations": "ops"}

// completed has the help of each command begin with what it does in short, and makes those without Args take the
// arguments that their usage shows.
func completed(c *cobra.Command) *cobra.Command {
	for _, below := range c.Commands() {
		if completed(below); below.Long != "" && !strings.HasPrefix(below.Long, below.Short) {
			below.Long = below.Short + ".\n\n" + below.Long
		}
	}
	_, usage, _ := strings.Cut(c.Use, " ")
	usage, _, _ = strings.Cut(usage, "--")
	words := strings.Fields(usage)
	if c.Args != nil || strings.Contains(usage, "QUERY") {
		return c
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if n := len(args); n == len(words) || n == 0 && usage[0] == '[' {
			return nil
		}
		return fmt.Errorf("%s takes %s: %w", c.CommandPath(), cmp.Or(strings.Join(words, " "), "no arguments"),
			errUsage)
	}
	return c
}

// Exit codes. Scripts rely on them.
const (
	ExitOK           = 0
	ExitError        = 1
	ExitUsage        = 2
	ExitPartly       = 3
	ExitForbidden    = 4
	ExitPrecondition = 5
	ExitNotFound     = 6
	ExitUnreachable  = 7
)

const exitCodes = `Exit codes:
  0  done, or nothing to do
  1  error
  2  wrong usage, or an invalid query
  3  partly done: some messages were left out, or you stopped watching;
     doctor: only warnings, or checks that could not be made
  4  not allowed: sign in, or sign in as another user
  5  not as expected: another count, no such queue, a plan that is too old or
     cannot start; doctor: something is wrong
  6  not found
  7  no service answers, or no RabbitMQ`

// errUsage marks errors in arguments and flags.
var errUsage = hint.New("usage", "see --help")

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	error
}

func (e exitError) Unwrap() error { return e.error }

func exitErrorf(code int, format string, args ...any) error {
	return exitError{code, fmt.Errorf(format, args...)}
}

func codeOf(err error) int {
	if err == nil {
		return ExitOK
	}
	var e exitError
	if errors.As(err, &e) {
		return e.code
	}
	return hint.KindOf(err, func(k hint.Kind) bool { return k.Exit != 0 }).Exit
}

// continues is the error of a command that goes on where it was interrupted.
func continues(err error) error {
	if errors.Is(err, context.Canceled) {
		return exitErrorf(ExitPartly, "run the same command again to continue")
	}
	return err
}

// printError prints an error on standard error, its hint on a line of its own, and for an error
// in a query a mark below the character.
func (p *program) printError(err error) {
	if err == nil {
		return
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok &&
		err.Error() == errors.Join(several.Unwrap()...).Error() {
		for _, err := range several.Unwrap() {
			p.printError(err)
		}
		return
	}
	// An error may quote a broker, another service or an argument.
	for line := range strings.SplitSeq(hint.Text(err), "\n") {
		p.say("redrive: ", line)
	}
	if remedy := hint.Of(err); remedy != "" {
		p.say("  hint: ", remedy)
	}
	var problem *httpapi.Problem
	if errors.As(err, &problem) && problem.At != nil && p.query != "" {
		for line := range strings.SplitSeq((&query.Error{At: *problem.At}).Show(p.query), "\n") {
			fmt.Fprintf(p.err, "  %s\n", strings.TrimRight(plain(line), " "))
		}
		fmt.Fprintln(p.err, "  hint: redrive help query")
	}
}

// say writes a text after its head on standard error, in lines that fit the terminal.
func (p *program) say(head, text string) {
	width := widthOf(p.err)
	if width > 0 {
		width = max(minRoom, width-len(head))
	}
	for _, line := range wrapped(plain(text), width) {
		fmt.Fprintln(p.err, head+line)
		head = strings.Repeat(" ", len(head))
	}
}

const noFiles = cobra.ShellCompDirectiveNoFileComp

// names returns the names that begin with a word; none if the service does not answer.
func (p *program) names(
	c *cobra.Command, word string, ask func(context.Context, httpapi.Client) ([]string, error),
) []string {
	ctx, cancel := context.WithTimeout(c.Context(), time.Second) // a person has pressed Tab
	defer cancel()
	client, err := p.client()
	if err != nil {
		return nil
	}
	all, _ := ask(ctx, client)
	return slices.DeleteFunc(all, func(name string) bool {
		return !strings.HasPrefix(name, word) || plain(name) != name
	})
}

func queueNames(ctx context.Context, client httpapi.Client) (all []string, err error) {
	queues, err := client.Queues(ctx)
	for _, q := range queues.Queues {
		all = append(all, q.Name)
	}
	return all, err
}

func (p *program) completeQueues(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && c.ValidArgsFunction != nil && strings.Contains(c.Use, "QUEUE") {
		return nil, noFiles
	}
	return p.names(c, word, queueNames), noFiles
}

func (p *program) completeOps(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	return p.names(c, word, func(ctx context.Context, client httpapi.Client) (all []string, err error) {
		ops, err := client.Operations(ctx)
		for _, o := range ops.Operations {
			all = append(all, o.ID)
		}
		return all, err
	}), noFiles
}

// completeQuery proposes completions of a query's last word.
func (p *program) completeQuery(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	last := word[strings.LastIndexAny(word, " (")+1:]
	before := strings.TrimSuffix(word, last)
	if begun, ok := strings.CutPrefix(last, "queue:"); ok {
		some := p.names(c, begun, queueNames)
		for i, name := range some {
			if strings.ContainsAny(name, ` "()*?`) {
				name = query.Quote(name)
			}
			some[i] = before + "queue:" + name
		}
		return some, noFiles
	}
	var some []string
	for _, s := range query.Complete(word) {
		some = append(some, cobra.CompletionWithDesc(before+s.Text, s.Doc))
	}
	return some, noFiles | cobra.ShellCompDirectiveNoSpace
}

// Build identifies the program. Go records in the binary what a release does not set: `go install …@version`
// the version, a build in the repository the commit.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Date    string `json:"date"` // of the commit, RFC 3339
	Go      string `json:"go"`
	System  string `json:"system"`
}

// complete returns b with what info has and b lacks.
func (b Build) complete(info *debug.BuildInfo) Build {
	recorded := map[string]string{}
	if info != nil {
		recorded["version"] = info.Main.Version
		for _, s := range info.Settings {
			recorded[s.Key] = s.Value
		}
	}
	if recorded["version"] == "(devel)" {
		recorded["version"] = ""
	}
	b.Version = cmp.Or(b.Version, recorded["version"], "dev")
	b.Commit = cmp.Or(b.Commit, recorded["vcs.revision"])
	b.Date = cmp.Or(b.Date, recorded["vcs.time"])
	b.Go, b.System = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
	return b
}

func (p *program) versionCommand() *cobra.Command {
	return p.withFormats(&cobra.Command{
		Use:   "version",
		Short: "Show the version of this program, its commit and its Go",
		RunE: func(*cobra.Command, []string) error {
			return write(p, p.build, func(b Build) string { return b.Version }, func(w io.Writer) {
				fmt.Fprintf(w, "redrive\t%s\ncommit\t%s\ndate\t%s\ngo\t%s %s\n", plain(p.build.Version),
					cmp.Or(plain(p.build.Commit), "unknown"), cmp.Or(plain(p.build.Date), "unknown"), p.build.Go,
					p.build.System)
			})
		},
	}, "table", "json", "yaml", "name")
}

// limitRuntime sets how many cores and how much memory Go uses, where the environment does not.
func (p *program) limitRuntime(log *slog.Logger) {
	if p.getenv("GOMAXPROCS") == "" {
		// A message passes through many goroutines, each with little to do:
		// on fewer cores they cost less (a sixth of the CPU on two), and
		// RabbitMQ, often beside it, has the rest.
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
	if p.getenv("GOMEMLIMIT") == "" {
		// Large bodies leave garbage of several times their size. Up to this heap, which
		// small ones do not reach, it is collected no sooner than by default.
		limit := int64(256 << 20)
		if all := cgroupMemory(os.DirFS("/")); all > 0 && all/5*4 < limit {
			limit = all / 5 * 4 // the rest is for what is not on the heap
			log.Info("less memory is used, since the container or unit has little", "limit", all, "heap", limit)
		}
		debug.SetMemoryLimit(limit)
	}
}

// cgroupMemory returns how many bytes the process may use: the lowest limit of its cgroup, of version 2 or 1,
// and of each group above; 0 is no limit.
func cgroupMemory(root fs.FS) (lowest int64) {
	const v2, v1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(groups)) {
		// Such as 0::/system.slice/redrive.service, or 4:memory:/docker/1234.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		at, file := v2, "memory.max"
		if parts[0] != "0" {
			at, file = v1, "memory.limit_in_bytes"
			if parts[1] != "memory" {
				continue
			}
		}
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			data, err := fs.ReadFile(root, path.Join(at, group, file))
			// Of version 1 no limit is a number of nearly 2⁶³; of version 2 it is "max".
			limit, wrong := strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64)
			if err == nil && wrong == nil && limit < 1<<60 && (lowest == 0 || limit < lowest) {
				lowest = limit
			}
			if group == "/" {
				break
			}
		}
	}
	return lowest
}

// serveProfiles serves Go's profiles until stop is called; "" serves none. Only to this machine,
// since each request costs CPU, and no one signs in.
func serveProfiles(address string, log *slog.Logger) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().IsLoopback() {
		return nil, fmt.Errorf("--pprof %q: expected an address of this machine alone, such as 127.0.0.1:6060: %w",
			address, errUsage)
	}
	listen, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--pprof: %w", err)
	}
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second} // the default mux, where net/http/pprof registers
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(listen); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("profiles are not served any more", "error", err)
		}
	})
	log.Info("profiles are served", "url", "http://"+listen.Addr().String()+"/debug/pprof/")
	return func() { _ = s.Close(); serving.Wait() }, nil
}
