// Package page_test is the page in a real browser: walked by keyboard and mouse,
// held to axe-core in each of its states, and shown all that a hostile message can
// contain.
package page_test

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/demo"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// chromium is started by the first test that needs it, and ended by TestMain.
var chromium struct {
	once sync.Once
	ctx  context.Context
	end  func()
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if chromium.end != nil {
		chromium.end()
	}
	os.Exit(code)
}

// start starts Chromium, which can reach nothing but this machine.
func start() {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, // containers have no other; it is shown nothing but our own pages
		chromedp.WindowSize(1280, 900),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.Flag("font-render-hinting", "none"),
		chromedp.Flag("lang", "en-GB"),
	)
	if path := os.Getenv("REDRIVE_CHROMIUM"); path != "" {
		options = append(options, chromedp.ExecPath(path))
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	silent := func(string, ...any) {}
	ctx, cancel := chromedp.NewContext(allocator, chromedp.WithErrorf(silent), chromedp.WithLogf(silent))
	chromium.ctx, chromium.end = ctx, func() { cancel(); stop() }
	if chromium.err = chromedp.Do(ctx); chromium.err != nil {
		chromium.err = fmt.Errorf("chromium does not start (`make install-chromium` installs it): %w", chromium.err)
	}
}

// tab is a tab of the browser, in a profile of its own. Whatever a page must never
// do there fails the test: errors, violations of its content security policy,
// dialogs, and requests to anywhere but its own service, or beside its base.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string // URL of the service

	mu sync.Mutex
	// expects are parts of errors that the test is about.
	expects []string
	dialogs int
}

// pageTimeout is how long a page may take. Only what fails takes as long.
const pageTimeout = 2 * time.Minute

func newTab(t *testing.T, base string) *tab {
	t.Helper()
	chromium.once.Do(start)
	if chromium.err != nil {
		t.Fatal(chromium.err)
	}
	ctx, cancel := chromedp.NewContext(chromium.ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, base: base}
	must(t, chromedp.Listen(ctx, b.heard))
	call(b, log.Enable, cdp.Empty{})
	call(b, network.Enable, network.EnableParams{})
	call(b, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "UTC"})
	return b
}

func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, pageTimeout)
}

// call gives the tab a command of Chromium's own protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := limited(b.ctx)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	if err != nil {
		b.t.Fatalf("%s: %v", command.Method, err)
	}
	return result
}

// expect lets errors be that contain one of these.
func (b *tab) expect(parts ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expects = append(b.expects, parts...)
}

func (b *tab) wrong(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.expects {
		if strings.Contains(text, e) {
			return
		}
	}
	b.t.Errorf("the browser says: %.400s", text)
}

// heard collects all that happens in the tab.
func (b *tab) heard(event any) {
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.wrong("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if x := e.ExceptionDetails.Exception; x != nil {
			text += " " + x.Description
		}
		b.wrong("exception: %s at %s", text, e.ExceptionDetails.URL)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning ||
			e.Type == runtime.ConsoleAPICalledTypeAssert {
			text := ""
			for _, a := range e.Args {
				text += " " + a.Description + string(a.Value)
			}
			b.wrong("console.%s:%s", e.Type, text)
		}
	case *page.EventJavascriptDialogOpening:
		b.mu.Lock()
		b.dialogs++
		b.mu.Unlock()
		b.wrong("a dialog opened: %s", e.Message)
		go func() {
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})
		}()
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, b.base+"/") && !strings.HasPrefix(e.Request.URL, "data:") {
			b.wrong("a request to elsewhere: %s", e.Request.URL)
		}
	}
}

// run does something in the tab within pageTimeout.
func (b *tab) run(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := limited(b.ctx)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("%v\n%s", err, b.where())
	}
}

// where is what the tab shows, for a test that fails.
func (b *tab) where() string {
	ctx, cancel := limited(b.ctx)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + " says:\n" + document.body?.innerText`))
	if err != nil {
		return fmt.Sprintf("(and cannot say what it shows: %v)", err)
	}
	return fmt.Sprintf("%.2500s", text)
}

// open goes to a path of the service.
func (b *tab) open(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.base + path))
}

// js is what an expression of JavaScript gives, awaited.
func js[T any](b *tab, expression string) T {
	b.t.Helper()
	ctx, cancel := limited(b.ctx)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%.200s: %v\n%s", expression, err, b.where())
	}
	return value
}

// until waits until an expression is true, on whatever page that is by then.
func (b *tab) until(what, expression string) {
	b.t.Helper()
	ctx, cancel := limited(b.ctx)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for yes := false; !yes; {
		select {
		case <-ctx.Done():
			b.t.Fatalf("it never became so: %s (%s)\n%s", what, expression, b.where())
		case <-again.C:
			// While the page is replaced, this fails or is never answered.
			once, done := context.WithTimeout(ctx, 10*time.Second)
			yes, _ = chromedp.Run(once, chromedp.Evaluate[bool]("!!("+expression+")"))
			done()
		}
	}
}

// shows waits until an element is there and can be seen; says, until its text
// contains some.
func (b *tab) shows(selector string) {
	b.t.Helper()
	b.until(selector+" is shown", fmt.Sprintf(`document.querySelector(%q)?.checkVisibility({ visibilityProperty: true })`, selector))
}

func (b *tab) says(selector, text string) {
	b.t.Helper()
	b.until(selector+" says "+text, fmt.Sprintf(`document.querySelector(%q)?.innerText.includes(%q)`, selector, text))
}

// has reports whether there is an element, now.
func (b *tab) has(selector string) bool {
	b.t.Helper()
	return js[bool](b, fmt.Sprintf(`!!document.querySelector(%q)`, selector))
}

// click clicks with the mouse what is shown; follow also waits for the page that it
// leads to, of which it expects an element.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.shows(selector)
	at := js[[]float64](b, fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.scrollIntoView({ block: "nearest", behavior: "instant" });
		const r = e.getClientRects()[0];
		return [r.left + r.width / 2, r.top + r.height / 2];
	})()`, selector))
	b.run(chromedp.MouseClickXY(at[0], at[1]))
}

func (b *tab) follow(selector, expected string) {
	b.t.Helper()
	b.leave(func() { b.click(selector) }, expected)
}

// leave does what leads to another page, and waits for that.
func (b *tab) leave(do func(), expected string) {
	b.t.Helper()
	js[bool](b, `document.left = true`)
	do()
	b.until("another page with "+expected,
		fmt.Sprintf(`!document.left && document.readyState == "complete" && document.querySelector(%q)?.checkVisibility()`, expected))
}

// keys presses keys, one after another; \r is Enter. Unlike chromedp's KeyEvent, a
// key that the page handles itself writes nothing, as with a real keyboard.
func (b *tab) keys(keys string) {
	b.t.Helper()
	for _, r := range keys {
		down := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: string(r), Text: string(r)}
		switch r {
		case '\r':
			down.Key, down.Code, down.WindowsVirtualKeyCode = "Enter", "Enter", 13
		case '\t':
			down.Key, down.Code, down.WindowsVirtualKeyCode, down.Text = "Tab", "Tab", 9, ""
		}
		up := down
		up.Type, up.Text = input.DispatchKeyEventTypeKeyUp, ""
		call(b, input.DispatchKeyEvent, down)
		call(b, input.DispatchKeyEvent, up)
	}
}

// write puts a text into a field, in place of what is in it, by keyboard.
func (b *tab) write(selector, text string) {
	b.t.Helper()
	b.click(selector)
	js[bool](b, fmt.Sprintf(`document.querySelector(%q).select() || true`, selector))
	call(b, input.InsertText, input.InsertTextParams{Text: text})
}

// scheme is "light" or "dark".
func (b *tab) scheme(name string) {
	b.t.Helper()
	call(b, emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme",
			Value: name}}})
}

// size sets the window's, in CSS pixels.
func (b *tab) size(width, height int64) {
	b.t.Helper()
	b.run(chromedp.EmulateViewport(width, height))
}

// axe-core, as its npm package has it: see axe.LICENSE.
//
//go:embed testdata/axe.min.js
var axeCore string

// violation is one rule of axe-core that a page breaks.
type violation struct {
	ID    string `json:"id"`
	Help  string `json:"help"`
	Nodes []struct {
		HTML           string `json:"html"`
		FailureSummary string `json:"failureSummary"`
	} `json:"nodes"`
}

// axe fails the test for each violation of the page as it is.
func (b *tab) axe(state string, rules ...string) {
	b.t.Helper()
	only := `{type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}`
	if len(rules) > 0 {
		list, _ := json.Marshal(rules)
		only = fmt.Sprintf(`{type: "rule", values: %s}`, list)
	}
	if !js[bool](b, `"axe" in window`) {
		b.run(chromedp.Evaluate[chromedp.Void](axeCore))
	}
	found := js[[]violation](b, `axe.run(document, {resultTypes: ["violations"], runOnly: `+only+`}).then(r => r.violations)`)
	for _, v := range found {
		var where []string
		for _, n := range v.Nodes[:min(3, len(v.Nodes))] {
			where = append(where, fmt.Sprintf("    %.300s\n    %s", n.HTML, strings.ReplaceAll(n.FailureSummary, "\n",
				"\n    ")))
		}
		b.t.Errorf("%s: axe %s: %s (%d times)\n%s", state, v.ID, v.Help, len(v.Nodes), strings.Join(where, "\n"))
	}
}

// look holds the page, as it is now, to all that each page has to be: for axe-core
// in the light and in the dark, where only colours differ, and without scrolling
// sideways at 400 % zoom of a window of 1280 pixels.
func (b *tab) look(state string) {
	b.t.Helper()
	b.axe(state)
	b.scheme("dark")
	b.axe(state+", dark", "color-contrast")
	b.scheme("light")
	b.size(320, 256)
	js[bool](b, `new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(() => drawn(true))))`)
	if wide := js[int](b, `document.documentElement.scrollWidth`); wide > 320 {
		widest := js[string](b, `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, pre, .unseen, .skip")).slice(0, 5).map(e => e.outerHTML.slice(0, 160)).join("\n")`)
		b.t.Errorf("%s: at 400 %% zoom the page scrolls sideways: it is %d pixels wide, because of\n%s", state, wide,
			widest)
	}
	b.size(1280, 900)
	b.thumb(state)
}

// thumb holds the page to what a telephone needs: it does not scroll sideways, what is tapped is high enough for
// a thumb, but for links within a sentence, and each cell says which column it is of.
func (b *tab) thumb(state string) {
	b.t.Helper()
	b.size(390, 844)
	for _, bad := range js[[]string](b, `new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(() => drawn((() => {
		const bad = [], wide = document.documentElement.scrollWidth, seen = e => e.checkVisibility({ visibilityProperty: true }) && !e.closest(".unseen, .skip, .minutes");
		if (wide > innerWidth) bad.push("the page scrolls sideways: it is " + wide + " pixels wide");
		for (const e of [...document.querySelectorAll("a[href], button, summary, textarea, input:not([type=hidden])")].filter(seen)) {
			const target = e.closest("label:has([type=checkbox], [type=radio])") ?? e, inSentence = getComputedStyle(e).display == "inline" && e.matches("p a, li a, dd a, h2 a, .now a, .wait a, .doc a") && !e.closest("#docs-index");
			const r = target.getBoundingClientRect();
			if (e.closest("nav") && !document.querySelector("dialog[open]") && document.elementFromPoint(r.left + r.width / 2, r.bottom - 5)?.closest("a") != e && r.top >= 0 && r.bottom < innerHeight) bad.push("another link lies over this one: " + e.outerHTML.slice(0, 120));
			if (!inSentence && r.height < 43.5) bad.push(Math.round(r.height) + " pixels are too low for a thumb: " + e.outerHTML.slice(0, 120));
		}
		for (const head of [...document.querySelectorAll(".rows > thead:has(a) th")].filter(seen)) {
			if (![...head.closest("table").querySelectorAll("td, tbody th")].some(c => c.dataset.label == head.textContent && (seen(c) || c.matches(":empty")))) bad.push("it is sorted by " + head.textContent + ", which is not shown");
		}
		for (const cell of [...document.querySelectorAll(".rows:not(.minutes) > tbody > tr > *")].filter(seen)) {
			let at = 0;
			for (let c = cell.previousElementSibling; c; c = c.previousElementSibling) at += c.colSpan;
			const head = cell.closest("table").tHead.rows[0].cells[at]?.textContent, label = cell.dataset.label, shows = getComputedStyle(cell, "::before").content;
			const r = cell.getBoundingClientRect();
			if (cell.colSpan == 1 && label != head || !label) bad.push("a cell of the column " + head + " is labelled " + label);
			if (!cell.matches("th, .what, .name, .box") && shows != JSON.stringify(label)) bad.push("the label " + label + " is not shown, but " + shows);
			if (r.left < 0 || r.right > innerWidth + 1) bad.push("a cell of the column " + head + " is beside the screen");
		}
		for (const c of [...document.querySelectorAll("caption")].filter(seen)) if (c.getBoundingClientRect().width < 100) bad.push("a narrow caption: " + c.textContent);
		return [...new Set(bad)].slice(0, 12);
	})()))))`) {
		b.t.Errorf("%s, at 390 pixels: %s", state, bad)
	}
	b.size(1280, 900)
}

// scene is a made-up shop as the service serves it. Tests that need RabbitMQ and its traffic run a whole
// service: see newService.
type scene struct {
	*webtest.Shop
	options
	base   string // URL, with the path that it is under
	token  string // an admin's, where callers must sign in
	tokens *auth.Tokens
	server *httptest.Server
	gone   atomic.Bool
}

// leaves cuts all connections and answers no more, as a service that is restarted
// behind a proxy, until it comes back.
func (s *scene) leaves() {
	s.gone.Store(true)
	s.server.CloseClientConnections()
}

func (s *scene) comesBack() { s.gone.Store(false) }

// options of a scene.
type options struct {
	readOnly, signIn bool
	masks            *mask.Rules
	// vhosts, when there are several, are what the service serves: the scene is the one
	// that says so.
	vhosts []webui.VHost
}

// here is the virtual host that the scene is, and the path that it is under.
func (o options) here() (vhost, base string) {
	for _, v := range o.vhosts {
		if v.Here {
			return v.Name, strings.TrimSuffix(v.URL, "/")
		}
	}
	return "", ""
}

// protobuf is how the shop's orders are read: the example's types.
func protobuf(t testing.TB) decode.Options {
	t.Helper()
	folder, err := filepath.Abs("../../examples/proto")
	must(t, err)
	return decode.Options{Protobuf: decode.Protobuf{Files: []string{filepath.Join(folder, "shop/order.proto")},
		ImportPaths: []string{folder},
		Queues:      []decode.QueueType{{Queues: []string{"orders.*"}, Message: "shop.Order"}}}}
}

func newShop(t testing.TB, o options) *scene {
	return serve(t, o, webtest.Stocked(read(t, o)))
}

func newEmpty(t testing.TB, told *webtest.Told) *scene {
	return serve(t, options{}, webtest.New(memstore.New(), told, read(t, options{})))
}

func read(t testing.TB, o options) inspect.Config {
	t.Helper()
	decoder, err := decode.New(protobuf(t))
	must(t, err)
	return inspect.Config{ReadOnly: o.readOnly, Decoder: decoder, Mask: func() *mask.Rules { return o.masks }}
}

func serve(t testing.TB, o options, shop *webtest.Shop) *scene {
	t.Helper()
	s := &scene{Shop: shop, options: o, tokens: auth.NewTokens(shop.Store, shop.Book)}
	var err error
	if s.token, _, err = s.tokens.Create(t.Context(), webtest.Root, auth.NewToken{Name: "dana",
		Role: "admin"}); err != nil {
		t.Fatal(err)
	}
	vhost, base := o.here()
	a := shop.API(webui.Options{Base: base, VHost: vhost, VHosts: func() []webui.VHost {
		return o.vhosts
	}}, auth.Config{Required: o.signIn, ReadOnly: o.readOnly, Tokens: s.tokens})
	whole := httpapi.Under(base, a)
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.gone.Load() {
			http.Error(w, "the service is restarted", http.StatusServiceUnavailable)
			return
		}
		whole.ServeHTTP(w, r)
	}))
	s.base = s.server.URL + base
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { shop.Inspector.Run(ctx) })
	running.Go(func() { shop.Runner.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		a.EndStreams()
		s.server.CloseClientConnections()
		s.server.Close()
	})
	return s
}

// add keeps records.
func (s *scene) add(t testing.TB, records ...*store.Record) {
	t.Helper()
	must(t, s.Store.Add(t.Context(), records))
}

// service is a whole Redrive on a real broker, with messages in its store from
// before it was started.
type service struct {
	t      *testing.T
	vhost  *brokertest.VHost
	ch     *amqp.Channel
	config *config.Config
	parked []*store.Record // of orders.capture, oldest first
	base   string
	stop   func()
}

// newService starts one on the newest broker there is.
func newService(t *testing.T) *service {
	t.Helper()
	s := newStoppedService(t)
	s.start()
	return s
}

func newStoppedService(t *testing.T) *service {
	t.Helper()
	brokers := brokertest.All(t)
	s := &service{t: t, vhost: brokertest.NewVHost(t, brokers[len(brokers)-1]), config: config.Default()}
	s.ch = s.vhost.Channel()
	for _, q := range []string{"orders.capture", "mail.send", "webhooks"} {
		s.vhost.Queue(q, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
	}
	s.config.Broker = config.Broker{URL: s.vhost.ServiceURL(webtest.Policies()), Management: s.vhost.Management}
	s.config.Store.Disk, s.config.Listen = filepath.Join(t.TempDir(), "store"), "127.0.0.1:0"
	s.config.Policies, s.config.Decode, s.config.Throttle = webtest.Policies(), protobuf(t), map[string]throttle.Rules{}
	for _, p := range s.config.Policies {
		s.config.Throttle[p.Name] = throttle.Rules{NoConsumer: throttle.RetryWithoutConsumers} // the tests read with basic.get
	}

	disk, err := diskstore.Open(s.config.Store.Disk, diskstore.Options{Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	now := time.Now()
	for i := 60; i >= 0; i -= 6 {
		s.parked = append(s.parked, webtest.Message(i, store.Parked, now))
	}
	waiting := webtest.Message(2, store.Waiting, now)
	waiting.Due = now.Add(time.Hour)
	must(t, disk.Add(t.Context(), append([]*store.Record{waiting}, s.parked...)))
	must(t, disk.Close())
	return s
}

// start runs it; it ends with the test at the latest.
func (s *service) start() {
	s.t.Helper()
	a := servertest.Run(s.t, s.config)
	s.stop = func() {
		expect.Err(s.t, a.Stop(), nil, "the service ended with")
	}
	s.config.Listen = a.Addr() // also after a restart
	s.base = "http://" + a.Addr()
	a.Ready(s.t)
}

// fail publishes a message that its consumer rejects.
func (s *service) fail(queue, body string) {
	s.t.Helper()
	err := s.ch.PublishWithContext(s.t.Context(), "", queue, true, false, amqp.Publishing{Body: []byte(body),
		ContentType: "application/json"})
	must(s.t, err)
	d := s.take(queue)
	if string(d.Body) != body {
		s.t.Fatalf("in the queue %s is %.100q, and not what was published there", queue, d.Body)
	}
	must(s.t, d.Reject(false))
}

// take waits for the next message of a queue.
func (s *service) take(queue string) (d amqp.Delivery) {
	s.t.Helper()
	brokertest.Eventually(s.t, "there is a message in "+queue, func() bool {
		var ok bool
		var err error
		if d, ok, err = s.ch.Get(queue, false); err != nil {
			s.t.Fatal(err)
		}
		return ok
	})
	return d
}

// arrives takes a message that is expected, and is done with it.
func (s *service) arrives(queue string) amqp.Delivery {
	s.t.Helper()
	d := s.take(queue)
	must(s.t, d.Ack(false))
	return d
}

var must, errOf = expect.NoError, expect.ErrOf

var update = flag.Bool("update", false, "make the pictures of the README again")

// small is the top of a picture in few colours: its 255 most frequent ones, and of others the
// nearest of them.
func small(full []byte) ([]byte, error) {
	img, err := png.Decode(bytes.NewReader(full))
	if err != nil {
		return nil, err
	}
	count := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(img.At(x, y)).(color.RGBA) }
	r := img.Bounds()
	r.Max.Y = min(r.Max.Y, 1100)
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	often := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return cmp.Compare(count[b], count[a]) })
	var palette color.Palette
	for _, c := range often[:min(len(often), 255)] {
		palette = append(palette, c)
	}
	nearest := map[color.RGBA]uint8{}
	for _, c := range often {
		nearest[c] = uint8(palette.Index(c))
	}
	out := image.NewPaletted(r, palette)
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			out.SetColorIndex(x, y, nearest[at(x, y)])
		}
	}
	var b bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, out)
	return b.Bytes(), err
}

var pageOf = regexp.MustCompile(`The page: (http://[0-9.:]+)/`)

// publish makes what the tab shows a picture of the README.
func (b *tab) publish(name string) {
	b.t.Helper()
	ctx, cancel := limited(b.ctx)
	defer cancel()
	full, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	must(b.t, err)
	data, err := small(full)
	if err == nil {
		err = os.WriteFile("../../docs/images/"+name+".png", data, 0o644)
	}
	must(b.t, err)
}

// TestPictures takes the README's pictures, with -update, of what make run shows after a minute
// and a half, when a few invoices are parked and the payment service is down.
func TestPictures(t *testing.T) {
	if !*update {
		t.Skip("-update makes the pictures of the README again")
	}
	brokers := brokertest.All(t)
	vhost := brokertest.NewVHost(t, brokers[len(brokers)-1])
	said := &brokertest.Output{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		if err := demo.Run(ctx, demo.Options{Broker: vhost.URL(), Management: vhost.Management, Out: said,
			Version: "demo"}); err != nil {
			t.Errorf("the demo ended with %v, and said:\n%s", err, said)
		}
	})
	brokertest.Eventually(t, "the demo has its page", func() bool { return pageOf.MatchString(said.String()) })
	b := newTab(t, pageOf.FindStringSubmatch(said.String())[1])

	// The story goes on for longer than a page may take.
	becomes := func(is string) {
		for range 40 {
			if js[bool](b, `new Promise(answer => { let n = 0, i = setInterval(() => { if (`+is+` || ++n > 50) { clearInterval(i); answer(n <= 50); } }, 100) })`) {
				return
			}
		}
		t.Fatalf("in the demo it never became so: %s\n%s", is, b.where())
	}
	b.open("/")
	becomes(`document.querySelector('[data-live="parked"]').textContent >= 8`)
	b.leave(func() { b.open("/messages?q=state%3Aparked") }, "#matching")
	b.follow(`#matching button[value="replay"]`, "#start-button")
	b.write("input[name=rate]", "0.2")
	b.write("input[name=reason]", "the lamps have prices again")
	b.follow("#start-button", "#progress")
	operation := b.path()

	b.open("/messages?q=state%3Aparked+error%3Aprice")
	b.keys("j")
	b.leave(func() { b.keys("\r") }, "#body .schema")
	b.publish("message")
	b.open(operation)
	b.says("#outcomes", "failed again")
	b.publish("operation")
	b.open("/")
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		// The numbers follow at once, the calendar every few seconds.
		becomes(`(n => n >= 8 && document.querySelector("#calendar tr:not(.none) td.n"))(document.querySelector("#numbers a").textContent)`)
		b.publish("overview-" + scheme)
	}
	b.expect("ERR_CONNECTION") // the page outlives the demo
}
