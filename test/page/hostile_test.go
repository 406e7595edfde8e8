package page_test

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/net/html"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// get asks for a page.
func (s *scene) get(t *testing.T, path string) (string, http.Header) {
	t.Helper()
	resp, err := http.Get(s.base + path)
	if err != nil {
		t.Fatalf("%.200s: %v", path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%.200s: %v", path, err)
	}
	if resp.StatusCode >= 500 {
		t.Errorf("%.200s: %s", path, resp.Status)
	}
	return string(body), resp.Header
}

func TestHostileContent(t *testing.T) {
	t.Parallel()
	s, ids, operation := attacked(t)
	t.Run("is text", func(t *testing.T) { hostileIsText(t, s, ids, operation) })
	t.Run("does nothing in a browser", func(t *testing.T) { hostileInABrowser(t, s, ids, operation) })
	t.Run("is harmless in exports", func(t *testing.T) { hostileInExports(t, s) })
	t.Run("is harmless in terminals", func(t *testing.T) { hostileInTerminals(t, s, ids, operation) })
}

func hostileIsText(t *testing.T, s *scene, ids []string, operation string) {
	known := ordinary(t)
	paths := []string{"/", "/groups", "/queues", "/operations", "/operations/" + operation, "/plans/" + operation,
		"/policies", "/audit", "/health"}
	for _, id := range ids {
		paths = append(paths, "/messages/"+id)
	}
	groups, err := s.Groups(t.Context(), webtest.Root, "", "", "", 0)
	must(t, err)
	for i := 0; i < len(groups.Groups); i += 5 {
		paths = append(paths, "/groups/"+groups.Groups[i].ID)
	}
	for i := 0; i < len(ids); i += 5 {
		paths = append(paths, "/messages/"+ids[i]+"/edit")
	}
	for i, p := range payloads(t) {
		if p = p[:min(len(p), 8000)]; i%2 == 0 {
			paths = append(paths, "/messages?"+url.Values{"q": {p}}.Encode(),
				"/groups?"+url.Values{"q": {`error:"` + p + `"`}}.Encode(), "/messages/"+url.PathEscape(p),
				"/signin?"+url.Values{"next": {p}, "error": {p}}.Encode())
		} else {
			paths = append(paths, "/messages?"+url.Values{"q": {"state:parked"}, "after": {p}}.Encode(),
				"/messages/check?"+url.Values{"q": {p}}.Encode(), "/plans/"+url.PathEscape(p), "/"+url.PathEscape(p),
				"/audit?"+url.Values{"after": {p}}.Encode())
		}
	}
	look := func(path string) (body string) {
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		body, header := s.get(t, path+separator+"wait=1") // as a browser asks where it takes long
		if kind := header.Get("Content-Type"); !strings.HasPrefix(kind, "text/html") {
			if strings.Contains(kind, "html") || strings.Contains(kind, "xml") || strings.Contains(kind, "script") {
				t.Errorf("%.200s is served as %s", path, kind)
			}
			return body
		}
		expect.Contains(t, header.Get("Content-Security-Policy"), path, "script-src 'self';")
		for is := range shapeOf(t, fmt.Sprintf("%.200s", path), strings.NewReader(body)) {
			if !known[is] {
				t.Errorf("%.200s has <%s>, which no page of ours has", path, is)
			}
		}
		return body
	}
	for _, path := range paths {
		look(path)
	}
	for after := "/messages?q="; after != ""; { // the whole list, page by page
		_, rest, _ := strings.Cut(look(after), `id="next" rel="next" href="`)
		after, _, _ = strings.Cut(rest, `"`)
		after = html.UnescapeString(after)
	}
	for i := 0; i < len(ids); i += 10 {
		body, header := s.get(t, "/messages/"+ids[i]+"/body")
		if header.Get("Content-Type") != "application/octet-stream" ||
			!strings.HasPrefix(header.Get("Content-Disposition"), "attachment") ||
			!strings.Contains(header.Get("Content-Security-Policy"), "sandbox") ||
			header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("a body of %d bytes is served as %v", len(body), header)
		}
	}
}

// A browser that is shown all of it runs nothing of it, and asks no one else.
func hostileInABrowser(t *testing.T, s *scene, ids []string, operation string) {
	all := payloads(t)
	everything := carrier(0, strings.Join(all[:len(all)-7], "\n"), store.Parked)
	everything.ID, everything.Message.Type = uuid.New(), "everything"
	for i, p := range all {
		everything.Message.Headers[fmt.Sprintf("h%03d", i)] = p[:min(len(p), 2000)]
		everything.Notes = append(everything.Notes, p[:min(len(p), 2000)])
	}
	s.add(t, everything)
	b := newTab(t, s.base)
	b.expect("422", "404", "414")
	for _, path := range []string{"/", "/messages", "/messages?q=state%3Awaiting",
		"/messages/" + everything.ID.String(), "/messages/" + everything.ID.String() + "/edit", "/messages/" + ids[2],
		"/messages/" + ids[6],
		"/groups", "/queues", "/operations/" + operation, "/plans/" + operation, "/audit", "/health",
		"/messages?" + url.Values{"q": {all[len(all)-2]}}.Encode(), "/messages/" + url.PathEscape(all[0])} {
		b.open(path)
		if ran := js[bool](b, `document.querySelector("iframe, object, embed, base, main script, main style, main img, main link, [onerror], [onload], [style*='evil']") !== null || ({}).polluted !== undefined`); ran {
			t.Errorf("%s: there is something of a payload", path)
		}
		if wide := js[int](b, `document.documentElement.scrollWidth`); wide > 1280 {
			t.Errorf("%s is %d pixels wide", path, wide)
		}
	}
}

// Cells of a table that a spreadsheet would take for a formula are made text, and
// lines of JSON return every byte.
func hostileInExports(t *testing.T, s *scene) {
	table, header := s.get(t, "/api/v1/export?format=csv")
	if !strings.HasPrefix(header.Get("Content-Disposition"), "attachment") {
		t.Errorf("the table is served as %v", header)
	}
	rows, err := csv.NewReader(strings.NewReader(table)).ReadAll()
	if err != nil || len(rows) < 600 {
		t.Fatalf("%d rows: %v", len(rows), err)
	}
	for _, row := range rows {
		for _, cell := range row {
			if bare := strings.TrimLeft(cell, " \t\r\n\u00a0\ufeff"); bare != "" &&
				strings.ContainsRune("=+-@", []rune(bare)[0]) {
				t.Errorf("a spreadsheet would compute %.100q", cell)
			}
		}
	}
	var out, again bytes.Buffer
	n, err := s.Export(t.Context(), webtest.Root, "state:parked", &out)
	if err != nil || n < 300 {
		t.Fatal(n, err)
	}
	other := newEmpty(t, nil)
	if _, err := other.Import(t.Context(), webtest.Root, bytes.NewReader(out.Bytes()),
		actions.ImportOptions{}); !errors.Is(err, inspect.ErrInvalid) ||
		!strings.Contains(err.Error(), "is not a work queue") {
		t.Errorf("the name of a queue that is not UTF-8: %v", err)
	}
	var named strings.Builder
	for line := range strings.Lines(out.String()) {
		if !strings.Contains(line, `"queue":{"base64"`) {
			named.WriteString(line)
		}
	}
	must(t, errOf(other.Import(t.Context(), webtest.Root, strings.NewReader(named.String()), actions.ImportOptions{})))
	must(t, errOf(other.Export(t.Context(), webtest.Root, "state:parked", &again)))
	messages := func(lines string) (all []string) {
		for line := range strings.Lines(lines) {
			var l map[string]json.RawMessage
			must(t, json.Unmarshal([]byte(line), &l))
			for _, own := range []string{"id", "made_from", "forward", "due", "parked_at", "notes", "attempt",
				"parked_for"} {
				delete(l, own)
			}
			text, _ := json.Marshal(l)
			all = append(all, string(text))
		}
		slices.Sort(all)
		return all
	}
	if a, b := messages(named.String()), messages(again.String()); !slices.Equal(a, b) {
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("exported %.600s\nafter an import %.600s", a[i], b[i])
			}
		}
		t.Fatalf("%d lines, after an import %d", len(a), len(b))
	}
}

// What a command writes has nothing that a terminal obeys.
func hostileInTerminals(t *testing.T, s *scene, ids []string, operation string) {
	refused := []string{"replay", "--query", "state:parked", "--dry-run"} // a message's queue does not exist
	commands := [][]string{{"messages", "list", "--limit", "2000"}, {"groups"}, {"queues"}, {"status"}, {"ops", "list"},
		{"ops", "show", operation}, {"audit"},
		refused, {"discard", "--dry-run", ids[0]}}
	for i := range ids {
		if i%6 == 0 {
			commands = append(commands, []string{"messages", "show", ids[i]})
		}
	}
	for _, format := range []string{"json", "jsonl", "yaml", "csv", "name"} {
		commands = append(commands, []string{"messages", "list", "--limit", "2000", "-o", format})
	}
	for _, format := range []string{"json", "yaml"} {
		commands = append(commands, []string{"groups", "-o", format}, []string{"queues", "-o", format},
			[]string{"messages", "show", ids[3], "-o", format}, []string{"audit", "-o", format})
	}
	for _, command := range commands {
		var out, errOut bytes.Buffer
		want := cli.ExitOK
		if &command[0] == &refused[0] {
			want = cli.ExitPrecondition
		}
		if code := cli.Run(t.Context(), append(command, "--address", strings.TrimPrefix(s.base, "http://")), &out,
			&errOut, cli.Build{Version: "test"}); code != want {
			t.Errorf("%q ends with %d, not %d: %.300s", command, code, want, errOut.String())
		}
		if out.Len() == 0 {
			t.Errorf("%q says nothing", command)
		}
		for _, said := range []string{out.String(), errOut.String()} {
			if !utf8.ValidString(said) {
				t.Errorf("%q writes what is no UTF-8", command)
			}
			if i := strings.IndexFunc(said, odd); i >= 0 {
				t.Errorf("%q writes %.30q, which a terminal obeys or hides", command, said[max(0, i-10):])
			}
		}
	}
}

//go:embed testdata/hostile.txt
var hostile string

// payloads are the corpus, and some that are too long for a file.
func payloads(t testing.TB) (all []string) {
	t.Helper()
	for n, line := range strings.Split(hostile, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		p, err := strconv.Unquote(line)
		if err != nil {
			t.Fatalf("testdata/hostile.txt:%d: %v", n+1, err)
		}
		all = append(all, p)
	}
	if len(all) < 200 {
		t.Fatalf("the corpus has only %d payloads", len(all))
	}
	return append(all, strings.Repeat("W", 300), strings.Repeat("<b>", 3_000), strings.Repeat("\u202e", 2_000),
		strings.Repeat(`"`, 5_000),
		strings.Repeat("a b ", 3_000), strings.Repeat("<img src=x onerror=alert(1)>", 500), `{"`+strings.Repeat("k",
			9_000)+`":1}`)
}

// carrier is a message that says a payload wherever a message can say something.
// Names that AMQP bounds are cut, as a publisher would have to.
func carrier(i int, p string, state store.State) *store.Record {
	short := p[:min(len(p), 255)]
	now := time.Now().Add(-time.Duration(i) * time.Second)
	r := &store.Record{ID: uuid.NewSHA1(uuid.Nil, fmt.Append(nil, "carrier ", i, state)), Queue: short, State: state,
		Due: now, Failures: 1, Reason: short, Error: p, Policy: short,
		FirstFailed: now, FailedAt: now, ParkedFor: p, Notes: []string{p, "x-death: " + p},
		Forward: &store.Destination{Exchange: short, RoutingKey: short}}
	if state != store.Parked {
		r.Due = now.Add(24 * time.Hour)
	}
	nested := amqp.Table{p: p, "list": []any{p, amqp.Table{p: []any{p}}}}
	r.Message = wire.Message{Exchange: short, RoutingKey: short, ContentType: short, CorrelationID: short,
		ReplyTo: short, MessageID: short, Type: short, UserID: short, AppID: short,
		Headers: amqp.Table{short: p, "text": p, "bytes": []byte(p), "table": nested, "x-death": []any{nested},
			"x-first-death-queue": p, "traceparent": p}, Body: []byte(p)}
	switch i % 4 {
	case 1:
		r.Message.Body, _ = json.Marshal(map[string]any{p: p, "list": []any{p, map[string]any{p: p}}})
		r.Message.ContentType = "application/json"
	case 2:
		r.Message.ContentType = "text/html"
	case 3:
		r.Message.Body = webtest.Body(int64(i), strings.ToValidUTF8(p, "\ufffd"), 1)
		r.Message.ContentType, r.Message.ContentEncoding = "application/x-protobuf", short
	}
	return r
}

// attacked is a scene in which everything that can contain a payload does.
func attacked(t *testing.T) (s *scene, ids []string, operation string) {
	t.Helper()
	told := &webtest.Told{Minutes: map[string]inspect.Flow{}, At: map[string]inspect.AtBroker{},
		Returns: map[string]string{}}
	s = newEmpty(t, told)
	for i, p := range payloads(t) {
		parked, waiting := carrier(i, p, store.Parked), carrier(i, p, store.Waiting)
		s.add(t, parked, waiting, carrier(i, p, store.Discarded))
		if ids = append(ids, parked.ID.String()); i%5 == 0 {
			ids = append(ids, waiting.ID.String())
		}
		told.At[parked.Queue] = inspect.AtBroker{Exists: i%2 == 0, Kind: "quorum", Consumers: 1}
		if i%3 == 0 {
			told.Minutes[parked.Queue], told.Returns[parked.Queue] = inspect.Flow{Failed: int64(i)}, p
			told.Conditions = append(told.Conditions, condition.Condition{Kind: condition.Unreachable, Queue: p,
				Text: p})
			told.Notices = append(told.Notices, p)
		}
		reason := string([]rune(strings.ToValidUTF8(p, "?"))[:min(400, utf8.RuneCountInString(p))])
		by := auth.Caller{Name: p, How: "rabbitmq", From: p, Interface: "page", Role: auth.Admin}
		if i%5 == 0 {
			if err := s.PauseQueue(t.Context(), by, parked.Queue, reason); err != nil && parked.Queue != "" {
				t.Errorf("pausing %q: %v", parked.Queue, err)
			}
		}
		if i%7 == 0 {
			expect.Err(t, s.NoteGroup(t.Context(), by, parked.Group().ID.String(), reason), nil, "noting %q", reason)
		}
		if i%80 == 0 { // a queue has few that have not ended
			plan, err := s.Plan(t.Context(), by, operations.PlanRequest{Verb: actions.Discard,
				Query: "state:waiting attempt:1", Reason: reason})
			must(t, err)
			o, err := s.Start(t.Context(), by, plan.ID, operations.Start{Rate: 0.01, Reason: reason})
			must(t, err)
			operation = o.ID
		}
	}
	return s, ids, operation
}

// shape is all elements of a page with all their attributes: what templates write,
// and nothing that a message contains.
type shape map[string]bool

// shapeOf reads a page as a browser does, and complains about what no page of ours
// has: what is odd in texts, and links that lead elsewhere.
func shapeOf(t *testing.T, name string, r io.Reader) shape {
	t.Helper()
	doc, err := html.Parse(r)
	must(t, err)
	all := shape{}
	for n := range doc.Descendants() {
		switch n.Type {
		case html.CommentNode:
			t.Errorf("%s: a comment: %.100q", name, n.Data)
		case html.TextNode:
			if n.Parent.Data == "textarea" {
				break // returns what it was given
			}
			if i := strings.IndexFunc(n.Data, odd); i >= 0 {
				t.Errorf("%s: in a text is %.20q, which cannot be seen", name, n.Data[i:])
			}
		case html.ElementNode:
			all[n.Data] = true
			for _, a := range n.Attr {
				all[n.Data+" "+a.Key] = true
				switch a.Key {
				case "href", "src", "action", "formaction", "hx-get":
					if strings.HasPrefix(name, "/docs/") && n.Data == "a" && strings.HasPrefix(a.Val, "https://") {
						break // the documentation, which has no message in it, leads to that of others
					}
					if !strings.HasPrefix(a.Val, "/") && !strings.HasPrefix(a.Val, "#") ||
						strings.HasPrefix(a.Val, "//") || strings.HasPrefix(a.Val, `/\`) {
						t.Errorf("%s: <%s %s=%.100q> leads elsewhere", name, n.Data, a.Key, a.Val)
					}
				case "title", "aria-label":
					if i := strings.IndexFunc(a.Val, odd); i >= 0 {
						t.Errorf("%s: in %s is %.20q, which cannot be seen", name, a.Key, a.Val[i:])
					}
				}
			}
		}
	}
	return all
}

// odd is what cannot be seen, or turns the text around it.
func odd(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) ||
		unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r))
}

// ordinary is the shape of all pages of a shop that no one attacks, with their errors.
func ordinary(t *testing.T) shape {
	s := newShop(t, options{})
	must(t, s.PauseQueue(t.Context(), webtest.Root, "orders.capture", "")) // which a message of it says
	all := shape{}
	for _, path := range append(paths(s), "/signin?error=refused") {
		body, _ := s.get(t, path)
		maps.Copy(all, shapeOf(t, path, strings.NewReader(body)))
	}
	for _, is := range []string{"del", "ins", "i", "mark", "span class", "ul", "li", "a rel",
		"details open"} { // of differences and the like
		all[is] = true
	}
	return all
}
