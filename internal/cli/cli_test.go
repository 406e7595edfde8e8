package cli_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/interrupt"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// TestMain makes this binary the program redrive when a script runs it.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"redrive": func() {
		code := cli.Run(interrupt.Context, os.Args[1:], os.Stdout, os.Stderr, cli.Build{Version: "test"})
		interrupt.Stop()
		os.Exit(code)
	}})
}

// hostile is what a stranger may put into any text: it clears the screen, sets
// colours in two ways, rings, turns the direction of writing, and hides.
const hostile = "a\x1b[2J\x1b]0;title\a\u009b31mb\u202ec\u200bd"

// nowhere is an address where no service listens.
const nowhere = "127.0.0.1:1"

func params(files ...string) testscript.Params {
	return testscript.Params{
		Files: files, RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOSTILE", hostile)
			e.Setenv("HOSTILE_LINES", hostile+"\n"+hostile)
			e.Setenv("REDRIVE_ADDRESS", nowhere)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "await": await, "signal": send, "harmless": isHarmless, "certificate": certificate, "fetch": fetch, "provider": provider},
	}
}

// A stop may come before main runs: an orchestrator that gives up a start does not wait for it.
func TestASignalBeforeMainStopsInOrder(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0], "serve")
	c.Args[0] = "redrive"
	c.Dir = t.TempDir()
	c.Env = append(os.Environ(), "GODEBUG=inittrace=1", "REDRIVE_LISTEN=127.0.0.1:0", "REDRIVE_BROKER_URL=amqp://"+nowhere)
	out, err := c.StderrPipe()
	must(t, err)
	must(t, c.Start())
	const module = "init github.com/redrive-mq/redrive/internal/"
	const handler, commands = module + "interrupt ", module + "cli "
	var text string
	for lines := bufio.NewScanner(out); lines.Scan(); text += lines.Text() + "\n" {
		if strings.HasPrefix(lines.Text(), handler) {
			must(t, c.Process.Signal(syscall.SIGTERM))
		}
	}
	before, _, installed := strings.Cut(text, handler)
	if err := c.Wait(); err != nil || !installed || strings.Contains(before, commands) {
		t.Errorf("%v, after\n%s", err, text)
	}
}

func scripts(t *testing.T, folder string) []string {
	files, err := filepath.Glob("testdata/" + folder + "/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s: %v", folder, err)
	}
	return files
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, params(scripts(t, "script")...))
}

// What needs RabbitMQ has more commands, and a virtual host for each script.
func TestScriptsOnABroker(t *testing.T) {
	for _, file := range scripts(t, "broker") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
				p := params(file)
				basics := p.Setup
				p.Setup = func(e *testscript.Env) error {
					e.Setenv("REDRIVE_BROKER_URL", brokerURL(t, v, e.WorkDir))
					e.Setenv("REDRIVE_MANAGEMENT_URL", v.Management)
					return basics(e)
				}
				setUp(t, p.Cmds, v)
				testscript.Run(t, p)
			})
		})
	}
}

// brokerURL is for a script's service: with the least rights that it needs for its
// config. A script without one sets RabbitMQ up, as a person who can.
func brokerURL(t *testing.T, v *brokertest.VHost, folder string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(folder, "redrive.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return v.URL()
	}
	var c *config.Config
	if err == nil {
		c, err = config.Parse("redrive.yaml", data)
	}
	must(t, err)
	return v.ServiceURL(c.Policies)
}

// setUp adds the commands by which a script makes what was there before Redrive, and what people and
// consumers do:
//
//	declare QUEUE ARGUMENTS            as JSON; whole numbers and text
//	bind EXCHANGE KIND QUEUE           with the queue's name as routing key
//	publish EXCHANGE KEY BODY...
//	policy NAME PATTERN PRIORITY DEFINITION
//	operator-policy NAME PATTERN PRIORITY DEFINITION
//	consume QUEUE [TAG], unconsume     holds its messages, and lets go; TAG: of a second consumer
//	as USER PASSWORD                   at the management API, from here on
//	in-force POLICY QUEUE              waits for it; - for none
//	user VARIABLE TAGS                 with the permission to read all queues and the password s3cret
//	fail QUEUE BODY...                 a consumer of the queue rejects these messages
//	reject QUEUE, take QUEUE BODY...   one message that is there; those, in order
//	report QUEUE ERROR                 a failure, as a client that publishes it
//	further FILE                       another virtual host, as broker.vhosts in FILE, with a user
//	                                   of the service's own, with $ADMIN2 and a queue foreign
func setUp(t *testing.T, cmds map[string]func(*testscript.TestScript, bool, []string), v *brokertest.VHost) {
	object := func(ts *testscript.TestScript, text string) (m map[string]any) {
		ts.Check(json.Unmarshal([]byte(text), &m))
		return m
	}
	cmds["declare"] = func(ts *testscript.TestScript, _ bool, args []string) {
		table := amqp.Table{}
		for k, a := range object(ts, args[1]) {
			if f, ok := a.(float64); ok {
				a = int64(f)
			}
			table[k] = a
		}
		v.Queue(args[0], table)
	}
	cmds["bind"] = func(_ *testscript.TestScript, _ bool, args []string) { v.Exchange(args[0], args[1], args[2]) }
	cmds["publish"] = func(_ *testscript.TestScript, _ bool, args []string) {
		for _, body := range args[2:] {
			v.Publish(args[0], args[1], amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)})
		}
	}
	policy := func(kind string) func(*testscript.TestScript, bool, []string) {
		return func(ts *testscript.TestScript, _ bool, args []string) {
			priority, err := strconv.Atoi(args[2])
			ts.Check(err)
			v.Must("PUT", kind+"/"+v.Name+"/"+url.PathEscape(args[0]), map[string]any{"pattern": args[1], "apply-to": "queues", "priority": priority, "definition": object(ts, args[3])})
		}
	}
	cmds["policy"], cmds["operator-policy"] = policy("policies"), policy("operator-policies")
	var consumer *brokertest.Consumer
	cmds["consume"] = func(ts *testscript.TestScript, _ bool, args []string) {
		if consumer = v.Consume(args[0]); len(args) > 1 {
			_, err := consumer.Channel.Consume(args[0], args[1], false, false, false, false, nil)
			ts.Check(err)
		}
	}
	cmds["unconsume"] = func(ts *testscript.TestScript, _ bool, _ []string) { ts.Check(consumer.Channel.Close()) }
	person := func(v *brokertest.VHost, tags string) string {
		name := "user-" + uuid.NewString()
		v.User(name, "s3cret")
		v.Must("PUT", "users/"+name, map[string]any{"password": "s3cret", "tags": tags})
		v.Grant(name, "^$", "^$", ".*")
		return name
	}
	cmds["user"] = func(ts *testscript.TestScript, _ bool, args []string) { ts.Setenv(args[0], person(v, args[1])) }
	cmds["fail"] = func(ts *testscript.TestScript, _ bool, args []string) {
		v.Queue(args[0], amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeDeadLetters})
		c := v.Consume(args[0])
		for _, body := range args[1:] {
			v.Publish("", args[0], amqp.Publishing{Body: []byte(body)})
			c.Reject()
		}
		ts.Check(c.Channel.Close())
	}
	cmds["reject"] = func(ts *testscript.TestScript, _ bool, args []string) {
		c := v.Consume(args[0])
		c.Reject()
		ts.Check(c.Channel.Close())
	}
	cmds["take"] = func(ts *testscript.TestScript, _ bool, args []string) {
		c := v.Consume(args[0])
		for _, body := range args[1:] {
			c.Take(body)
		}
		ts.Check(c.Channel.Close())
	}
	cmds["report"] = func(_ *testscript.TestScript, _ bool, args []string) {
		v.Publish(wire.ExchangeFailures, args[0], amqp.Publishing{Headers: amqp.Table{wire.HeaderError: args[1]}, Body: []byte("reported")})
	}
	cmds["further"] = func(ts *testscript.TestScript, _ bool, args []string) {
		other := brokertest.NewVHost(t, v.Broker)
		other.ServiceURL(brokertest.Works("orders"))
		other.Queue("foreign", amqp.Table{})
		ts.Setenv("ADMIN2", person(other, "management"))
		ts.Setenv("OTHER", other.Name)
		ts.Setenv("OTHER_USER", other.ServiceUser())
		ts.Setenv("OTHER_PASSWORD", brokertest.ServicePassword)
		ts.Check(os.WriteFile(ts.MkAbs(args[0]), fmt.Appendf([]byte(ts.ReadFile(args[0])),
			"broker: {vhosts: [{name: %s, user: %s, password_env: OTHER_PASSWORD}]}\n", other.Name, other.ServiceUser()), 0o600))
	}
	cmds["as"] = func(ts *testscript.TestScript, _ bool, args []string) {
		u, err := url.Parse(v.Management)
		ts.Check(err)
		u.User = url.UserPassword(args[0], args[1])
		ts.Setenv("REDRIVE_MANAGEMENT_URL", u.String())
	}
	cmds["in-force"] = func(_ *testscript.TestScript, _ bool, args []string) {
		want := args[0]
		if want == "-" {
			want = ""
		}
		settled(t, v, args[1], want)
	}
}

// certificate writes the files that a server proves itself with on 127.0.0.1.
func certificate(ts *testscript.TestScript, _ bool, args []string) {
	proof := httptest.NewTLSServer(nil)
	proof.Close()
	key, err := x509.MarshalPKCS8PrivateKey(proof.TLS.Certificates[0].PrivateKey)
	ts.Check(err)
	for i, block := range []*pem.Block{{Type: "CERTIFICATE", Bytes: proof.Certificate().Raw}, {Type: "PRIVATE KEY", Bytes: key}} {
		ts.Check(os.WriteFile(ts.MkAbs(args[i]), pem.EncodeToMemory(block), 0o600))
	}
}

// provider starts an OpenID Connect provider, https://example.com, that only the proxy $PROXY leads to. There a
// person confirms each sign-in of a device at once.
func provider(ts *testscript.TestScript, _ bool, _ []string) {
	const at = "https://example.com"
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	ts.Check(err)
	say := func(of func() any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(of())
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/.well-known/openid-configuration", say(func() any {
		return map[string]any{"issuer": at, "authorization_endpoint": at + "/authorize", "token_endpoint": at + "/token", "jwks_uri": at + "/keys",
			"device_authorization_endpoint": at + "/device", "id_token_signing_alg_values_supported": []string{"ES256"}}
	}))
	mux.Handle("/keys", say(func() any {
		return jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"}}}
	}))
	mux.Handle("/device", say(func() any {
		return map[string]any{"device_code": uuid.NewString(), "user_code": "WDJB-MJHT", "verification_uri": at + "/activate",
			"verification_uri_complete": at + "/activate?user_code=WDJB-MJHT" + "\x1b", "expires_in": 60, "interval": 1}
	}))
	mux.Handle("/token", say(func() any {
		claims, err := json.Marshal(map[string]any{"iss": at, "aud": "redrive", "sub": "42", "exp": time.Now().Add(time.Minute).Unix(),
			"email": "ann@example.com", "email_verified": true, "realm_access": map[string]any{"roles": []string{"platform"}}})
		ts.Check(err)
		signed, err := signer.Sign(claims)
		ts.Check(err)
		id, err := signed.CompactSerialize()
		ts.Check(err)
		return map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": id}
	}))
	secure := httptest.NewTLSServer(mux)
	ts.Defer(secure.Close)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != "example.com:443" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		to, err := net.Dial("tcp", secure.Listener.Addr().String())
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		from, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			_ = to.Close()
			return
		}
		_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n") // after Hijack, which drops what the client has sent
		go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}))
	ts.Defer(proxy.Close)
	ts.Setenv("PROXY", proxy.URL)
}

// exits CODE COMMAND...: runs it, which must end with the exit code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if code != want {
		ts.Fatalf("the exit code is %d, want %d", code, want)
	}
}

// await PATTERN COMMAND...: runs it until its output matches; what the pattern's
// group matched is then in $MATCH.
func await(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile("(?m)" + args[0])
	for deadline := time.Now().Add(time.Minute); ; {
		err := ts.Exec(args[1], args[2:]...)
		if m := pattern.FindStringSubmatch(ts.ReadFile("stdout")); m != nil {
			ts.Setenv("MATCH", m[len(m)-1])
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("after a minute still no %s (%v)", pattern, err)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// fetch URL FILE writes what a URL answers to a file.
func fetch(ts *testscript.TestScript, _ bool, args []string) {
	r, err := http.Get(args[0])
	ts.Check(err)
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), data, 0o600))
}

// send signals what runs in the background: signal NAME.
func send(ts *testscript.TestScript, _ bool, args []string) {
	s := map[string]syscall.Signal{"HUP": syscall.SIGHUP, "TERM": syscall.SIGTERM, "INT": syscall.SIGINT}[args[0]]
	for _, c := range ts.BackgroundCmds() {
		ts.Check(c.Process.Signal(s))
	}
}

// isHarmless: nothing the last command wrote does anything to a terminal.
func isHarmless(ts *testscript.TestScript, _ bool, _ []string) {
	for _, name := range []string{"stdout", "stderr"} {
		if i := strings.IndexFunc(ts.ReadFile(name), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			ts.Fatalf("%s has %q", name, ts.ReadFile(name)[i:])
		}
	}
}

// A test message arrives, says that it is one, and the exit code says how many did.
func TestNotifyTest(t *testing.T) {
	got := make(chan map[string]any, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m map[string]any
		must(t, json.NewDecoder(r.Body).Decode(&m))
		got <- m
	}))
	defer hook.Close()
	url := strings.Replace(hook.URL, "http:", "generic+http:", 1)
	file := filepath.Join(t.TempDir(), "redrive.yaml")
	must(t, os.WriteFile(file, []byte(`
notify:
  page: https://redrive.example.com
  allow_private: [127.0.0.1/32]
  routes:
    - {name: good, url: "`+url+`"}
    - {name: bad, url: "generic+http://127.0.0.2/s3cret"}
`), 0o600))
	for _, c := range []struct {
		args string
		code int
		out  string
	}{
		{"good", 0, "good   sent"},
		{"bad", 1, "notifications do not go to private addresses: 127.0.0.2"},
		{"--event intake_stopped -o jsonl", 3, `{"route":"good","event":"intake_stopped","result":"sent"}`},
	} {
		out, errOut := run(t, c.code, append(strings.Fields("notify test "+c.args), "--config", file)...)
		if !strings.Contains(out, c.out) || strings.Contains(out+errOut, "s3cret") {
			t.Errorf("%s: %s%s", c.args, out, errOut)
		}
	}
	if m := <-got; m["test"] != true || m["event"] != "parked" || m["title"] != "Redrive: a test" || !strings.HasPrefix(m["link"].(string), "https://redrive.example.com/messages?q=") {
		t.Errorf("it was sent %v", m)
	}
	if m := <-got; m["event"] != "intake_stopped" || m["severity"] != "critical" || m["link"] != "https://redrive.example.com/health" {
		t.Errorf("it was sent %v", m)
	}
}

// The columns of messages are those that one chooses, in a table and as CSV, and the names remain for other
// commands.
func TestColumnsOfMessages(t *testing.T) {
	asked := ""
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query().Get("columns")
		_ = json.NewEncoder(w).Encode(inspect.Page{Messages: []inspect.Message{{ID: "an-id", Held: "paused", Columns: map[string]string{
			"queue": "orders", "body.x": "=1+\x1b[2J", "attempt": "1204", "failed": "2026-11-21T10:00:00Z"}}}})
	}))
	defer service.Close()
	list := "messages list --address " + service.URL + " --columns queue,body.x,attempt,failed -o "
	for format, want := range map[string]string{
		"table": "QUEUE   BODY.X   ATTEMPT  FAILED\norders  =1+\ufffd[2J  1,204",
		"csv":   "queue,body.x,attempt,failed\norders,'=1+\ufffd[2J,1204,2026-11-21T10:00:00Z\n",
		"name":  "an-id\n",
		"jsonl": `"attempt":"1204"`,
	} {
		out, errOut := run(t, 0, strings.Fields(list+format)...)
		expect.Equal(t, strings.Contains(errOut, "1 held back, even once due: 1 paused\n"), format == "table",
			"%s says what is held back", format)
		if !strings.Contains(out, want) || asked != "queue,body.x,attempt,failed" {
			t.Errorf("%s: %q, of %s", format, out, asked)
		}
	}
	if _, errOut := run(t, 2, "messages", "list", "--address", service.URL, "--columns", "qeue"); !strings.Contains(errOut, `did you mean "queue"?`) {
		t.Error(errOut)
	}
}

// A list of operations that is cut says so, also beside JSON.
func TestOperationsAreListedUpToALimit(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		of := func(id string) operations.Operation { return operations.Operation{Plan: operations.Plan{ID: id}} }
		_ = json.NewEncoder(w).Encode(httpapi.Operations{Operations: []operations.Operation{of("c"), of("b"), of("a")}})
	}))
	defer service.Close()
	for flags, want := range map[string]string{
		"": "c\nb\na\n", "--limit 3": "c\nb\na\n", "--limit 2": "c\nb\nthere are more: --limit 3\n",
	} {
		args := strings.Fields("ops list -o name --address " + service.URL + " " + flags)
		if out, errOut := run(t, 0, args...); out+errOut != want {
			t.Errorf("%s: %q, want %q", flags, out+errOut, want)
		}
	}
	run(t, 2, "ops", "list", "--limit", "0", "--address", service.URL)
}

// The command asks for the unmasked message once, with the reason.
func TestAMaskedMessageIsAskedFor(t *testing.T) {
	var asked string
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = r.Method + " " + r.URL.Path + " " + string(body)
		_ = json.NewEncoder(w).Encode(inspect.Detail{Message: inspect.Message{ID: "an-id"}, Body: &decode.Result{Format: "text", Text: "s3cret"}})
	}))
	defer service.Close()
	show := []string{"messages", "show", "an-id", "--address", service.URL}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 0, "GET /api/v1/messages/an-id "},
		{[]string{"--unmask", "--reason", "ticket 7"}, 0, `POST /api/v1/messages/an-id/show {"reason":"ticket 7"}`},
		{[]string{"--unmask", "--reason", "ticket 7", "--body", "decoded"}, 0, `POST /api/v1/messages/an-id/show {"reason":"ticket 7"}`},
		{[]string{"--unmask"}, 2, ""},
		{[]string{"--unmask", "--reason", " "}, 2, ""},
		{[]string{"--reason", "ticket 7"}, 2, ""},
		{[]string{"--unmask", "--reason", "ticket 7", "--body", "raw"}, 2, ""},
		{[]string{"--unmask", "--reason", "ticket 7", "--watch"}, 2, ""},
	} {
		asked = ""
		out, _ := run(t, c.code, append(show, c.args...)...)
		if asked != c.want || strings.Contains(out, "s3cret") != (c.code == 0) {
			t.Errorf("%q asks for %q, want %q, and shows %s", c.args, asked, c.want, out)
		}
	}
}

func TestTheProxiesOfADemo(t *testing.T) {
	for _, args := range []string{"--public :0 --proxies 10.0.0.0/40", "--public :0 --proxies 10.0.0.7,proxy", "--proxies 10.0.0.7"} {
		if _, errOut := run(t, 2, append([]string{"demo"}, strings.Fields(args)...)...); !strings.Contains(errOut, "--proxies: ") {
			t.Errorf("%s: %s", args, errOut)
		}
	}
}

// run runs a command, which must end with the exit code.
func run(t *testing.T, code int, args ...string) (out, errOut string) {
	t.Helper()
	var o, e strings.Builder
	if is := cli.Run(context.Background(), args, &o, &e, cli.Build{Version: "test"}); is != code {
		t.Fatalf("%q: exit code %d, want %d:\n%s%s", args, is, code, &o, &e)
	}
	return o.String(), e.String()
}

// topology imports what the command prints, as `rabbitmqctl import_definitions`
// would.
func topology(t *testing.T, v *brokertest.VHost, args ...string) {
	t.Helper()
	out, _ := run(t, 0, append([]string{"topology", args[0], "--vhost", v.Name}, args[1:]...)...)
	v.Must("POST", "definitions", json.RawMessage(out))
}

// settled waits until the queue has the policy.
func settled(t *testing.T, v *brokertest.VHost, queue, policy string) {
	t.Helper()
	brokertest.Eventually(t, policy+" applies to "+queue, func() bool {
		q, _ := v.State(queue)
		return q.Policy == policy
	})
}

// comesBack waits until the queue goes by that policy: one that is busy does not at once.
func comesBack(t *testing.T, v *brokertest.VHost, queue, policy string) {
	t.Helper()
	settled(t, v, queue, policy)
	ch, asked := v.Channel(), 0
	brokertest.Eventually(t, "what is rejected comes back to "+queue, func() bool {
		if asked%500 == 0 { // the one before is lost
			v.Publish("", queue, amqp.Publishing{Body: []byte("rejected before")})
		}
		asked++
		d, ok, err := ch.Get(queue, false)
		must(t, err)
		if ok && d.Headers["x-death"] == nil {
			must(t, d.Reject(false))
		} else if ok {
			must(t, d.Ack(false))
			return true
		}
		return false
	})
}

const second = time.Second

// The recipe in the broker alone, with no code: what is rejected comes back, again
// and again, each time after the delay; what expired is dropped as a cycle, and
// stops nothing; what has no queue any more is parked.
func TestTheFixedTopologyBringsRejectedMessagesBack(t *testing.T) {
	for _, kind := range []string{"quorum", "classic"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				queues := []string{"orders", "gone"}
				for _, queue := range queues {
					v.Queue(queue, amqp.Table{"x-queue-type": kind})
					topology(t, v, "fixed", "--queue", queue, "--delay", "1s", "--"+kind)
				}
				for _, queue := range queues {
					comesBack(t, v, queue, "redrive-fixed."+queue)
				}
				// More of those that RabbitMQ takes for a cycle than an at-least-once
				// queue would hold before it stands still.
				for range 40 {
					v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent, Expiration: "1", Body: []byte("expired")})
				}
				brokertest.Eventually(t, "all have expired", func() bool { return v.Depth("orders") == 0 })
				v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("rejected")})
				work := v.Consume("orders")
				d := work.Next()
				for range 3 {
					began := time.Now()
					must(t, d.Reject(false))
					d = work.Next()
					if took := time.Since(began); string(d.Body) != "rejected" || took < second {
						t.Fatalf("%q came after %s", d.Body, took)
					}
				}
				must(t, d.Ack(false))
				brokertest.Eventually(t, "nothing is left, parked or waiting", func() bool {
					return v.Depth("orders")+v.Depth(wire.QueueParked) == 0
				})

				v.Publish("", "gone", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("homeless")})
				gone := v.Consume("gone")
				gone.Reject()
				// On the same channel, or the queue could be gone before the reject is there.
				must(t, errOf(gone.Channel.QueueDelete("gone", false, false, false)))
				v.Consume(wire.QueueParked).Take("homeless")
			})
		})
	}
}

// With a policy of somebody else's: it goes on applying, and undoing restores it.
func TestApplyingTheFixedTopology(t *testing.T) {
	t.Parallel()
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		v.Policy("theirs", "^orders$", 3, map[string]any{"max-length": 1000, "dead-letter-strategy": "at-least-once", "overflow": "reject-publish"})
		settled(t, v, "orders", "theirs")
		file := t.TempDir() + "/redrive.yaml"
		must(t, os.WriteFile(file, []byte("broker: {url: \""+v.URL()+"\", management: \""+v.Management+"\"}\n"), 0o600))
		fixed := []string{"topology", "fixed", "--queue", "orders", "-c", file}
		shown, _ := run(t, 0, append(fixed, "--delay", "1s", "--apply", "--yes")...)
		for _, want := range []string{"    max-length: 1000", "  - dead-letter-strategy: at-least-once", "  + dead-letter-routing-key: orders"} {
			if !strings.Contains(shown, want) {
				t.Errorf("%q is not shown:\n%s", want, shown)
			}
		}
		comesBack(t, v, "orders", "redrive-fixed.orders")
		v.Publish("", "orders", amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("rejected")})
		work, began := v.Consume("orders"), time.Now()
		work.Reject()
		work.Take("rejected")
		if took := time.Since(began); took < second {
			t.Errorf("it was back after %s", took)
		}
		run(t, 0, append(fixed, "--undo")...)
		settled(t, v, "orders", "theirs")
	})
}

// The published recipes under their own names, without a service: the consumers reject, or publish to the
// queue's name as they did. What waited comes to the work queue after its delay.
func TestTopologiesUnderTheRecipesNames(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ args, expiration string }{
		"work-queue-retry-60": {args: "fixed --delay 1s"},
		"work-queue-retry-1":  {args: "levels --levels 1s"},
		"queue.1000":          {args: "levels --classic --levels 1s"},
		"retry-queue":         {args: "message-ttl", expiration: "1000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
				v.Queue("work-queue", nil)
				topology(t, v, append(strings.Fields(c.args), "--queue", "work-queue", "--name", name)...)
				if strings.HasPrefix(c.args, "fixed") {
					comesBack(t, v, "work-queue", "redrive-fixed.work-queue")
				}
				work := v.Consume("work-queue")
				// next is the next with that body: at-least-once dead-lettering may deliver an earlier one twice.
				next := func(body string) amqp.Delivery {
					d := work.Next()
					for ; string(d.Body) < body; d = work.Next() {
						must(t, d.Ack(false))
					}
					expect.Equal(t, string(d.Body), body, "comes")
					return d
				}
				for i, to := range [][2]string{{"", name}, {name, "work-queue"}} {
					body, began := fmt.Sprint(i), time.Now()
					v.Publish(to[0], to[1], amqp.Publishing{DeliveryMode: amqp.Persistent, Expiration: c.expiration,
						Body: []byte(body)})
					d := next(body)
					if took := time.Since(began); took < second {
						t.Errorf("from %q it came after %s", to, took)
					}
					must(t, d.Ack(false))
				}
				if !strings.HasPrefix(c.args, "fixed") {
					return
				}
				v.Publish("", "work-queue", amqp.Publishing{Body: []byte("rejected")})
				began := time.Now()
				must(t, next("rejected").Reject(false))
				must(t, next("rejected").Ack(false))
				if took := time.Since(began); took < second {
					t.Errorf("it came back after %s", took)
				}
			})
		})
	}
	for _, args := range []string{"levels --queue q --name q", "fixed --queue q --name redrive.x",
		"levels --queue q --name retry", "binary --queue q --name retry"} {
		run(t, 2, append([]string{"topology"}, strings.Fields(args)...)...)
	}
}

// Where clients may not declare, the library runs on what was imported.
func TestTheLibraryRunsOnPrintedTopologies(t *testing.T) {
	t.Parallel()
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		for way, c := range map[string]struct {
			wait redrive.Way
			args []string
		}{
			"levels":      {redrive.Levels(second, 3*second), []string{"--levels", "1s,3s"}},
			"message-ttl": {redrive.MessageTTL(), nil},
			"binary":      {redrive.Binary(100 * time.Millisecond), []string{"--unit", "100ms"}},
		} {
			queue := "work of " + way
			v.Queue(queue, amqp.Table{"x-queue-type": "quorum"})
			k := redrive.Consumer{Queue: queue, Policy: policy.Policy{Attempts: 3, Backoff: policy.Fixed(second), Jitter: policy.None}, Wait: c.wait}
			ctx := t.Context()
			client, err := redrive.NewClient(ctx, redrive.Config{URLs: []string{v.URL()}, Verify: true})
			must(t, err)
			if _, err := client.NewSettler(ctx, k); err == nil {
				t.Fatalf("%s: nothing was imported, and nothing was missing", way)
			}
			topology(t, v, append([]string{way, "--queue", queue}, c.args...)...)
			s, err := client.NewSettler(ctx, k)
			if err != nil {
				t.Fatalf("%s: %v", way, err)
			}
			v.Publish("", queue, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(way)})
			work := v.Consume(queue)
			d, began := work.Next(), time.Now()
			if o, err := s.Settle(ctx, &d, errors.New("no")); o != redrive.Retried || err != nil {
				t.Fatalf("%s: %s, %v", way, o, err)
			}
			d = work.Take(way)
			if m := s.Message(&d); m.Attempt != 2 || time.Since(began) < second {
				t.Errorf("%s: attempt %d after %s", way, m.Attempt, time.Since(began))
			}
			client.Close()
		}
	})
}

var must, errOf = expect.NoError, expect.ErrOf
