package page_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"golang.org/x/net/html"

	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
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
	s, ids, operation := attacked(t)
	t.Run("is text", func(t *testing.T) { hostileIsText(t, s, ids, operation) })
	t.Run("does nothing in a browser", func(t *testing.T) { hostileInABrowser(t, s, ids, operation) })
	t.Run("is harmless in exports", func(t *testing.T) { hostileInExports(t, s) })
	t.Run("is harmless in terminals", func(t *testing.T) { hostileInTerminals(t, s, ids, operation) })
}

func hostileIsText(t *testing.T, s *scene, ids []string, operation string) {
	known := ordinary(t)
	paths := []string{"/", "/errors", "/queues", "/operations", "/operations/" + operation, "/plans/" + operation, "/policies", "/audit", "/health"}
	for _, id := range ids {
		paths = append(paths, "/messages/"+id)
	}
	for i := 0; i < len(ids); i += 5 {
		paths = append(paths, "/messages/"+ids[i]+"/edit")
	}
	for i, p := range payloads(t) {
		if p = p[:min(len(p), 8000)]; i%2 == 0 {
			paths = append(paths, "/messages?"+url.Values{"q": {p}}.Encode(), "/errors?"+url.Values{"q": {`error:"` + p + `"`}}.Encode(), "/messages/"+url.PathEscape(p), "/signin?"+url.Values{"next": {p}, "error": {p}}.Encode())
		} else {
			paths = append(paths, "/messages?"+url.Values{"q": {"state:parked"}, "after": {p}}.Encode(), "/messages/check?"+url.Values{"q": {p}}.Encode(), "/plans/"+url.PathEscape(p), "/"+url.PathEscape(p), "/audit?"+url.Values{"after": {p}}.Encode())
		}
	}
	look := func(path string) {
		body, header := s.get(t, path)
		if kind := header.Get("Content-Type"); !strings.HasPrefix(kind, "text/html") {
			if strings.Contains(kind, "html") || strings.Contains(kind, "xml") || strings.Contains(kind, "script") {
				t.Errorf("%.200s is served as %s", path, kind)
			}
			return
		}
		if !strings.Contains(header.Get("Content-Security-Policy"), "script-src 'self';") {
			t.Errorf("%.200s has no content security policy", path)
		}
		for is := range shapeOf(t, fmt.Sprintf("%.200s", path), strings.NewReader(body)) {
			if !known[is] {
				t.Errorf("%.200s has <%s>, which no page of ours has", path, is)
			}
		}
	}
	for _, path := range paths {
		look(path)
	}
	for after := "/messages?q="; after != ""; { // the whole list, page by page
		body, _ := s.get(t, after)
		look(after)
		_, rest, _ := strings.Cut(body, `id="next" rel="next" href="`)
		after, _, _ = strings.Cut(rest, `"`)
		after = html.UnescapeString(after)
	}
	for i := 0; i < len(ids); i += 10 {
		body, header := s.get(t, "/messages/"+ids[i]+"/body")
		if header.Get("Content-Type") != "application/octet-stream" || !strings.HasPrefix(header.Get("Content-Disposition"), "attachment") || !strings.Contains(header.Get("Content-Security-Policy"), "sandbox") || header.Get("X-Content-Type-Options") != "nosniff" {
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
	for _, path := range []string{"/", "/messages", "/messages?q=state%3Awaiting", "/messages/" + everything.ID.String(), "/messages/" + everything.ID.String() + "/edit", "/messages/" + ids[2], "/messages/" + ids[6],
		"/errors", "/queues", "/operations/" + operation, "/plans/" + operation, "/audit", "/health", "/messages?" + url.Values{"q": {all[len(all)-2]}}.Encode(), "/messages/" + url.PathEscape(all[0])} {
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
			if bare := strings.TrimLeft(cell, " \t\r\n\u00a0\ufeff"); bare != "" && strings.ContainsRune("=+-@", []rune(bare)[0]) {
				t.Errorf("a spreadsheet would compute %.100q", cell)
			}
		}
	}
	var out, again bytes.Buffer
	n, err := s.Export(t.Context(), root, "state:parked", &out)
	if err != nil || n < 300 {
		t.Fatal(n, err)
	}
	other := newScene(t, options{})
	if _, err := other.Import(t.Context(), root, bytes.NewReader(out.Bytes()), false); !errors.Is(err, inspect.ErrInvalid) || !strings.Contains(err.Error(), "is not a work queue") {
		t.Errorf("the name of a queue that is not UTF-8: %v", err)
	}
	var named strings.Builder
	for line := range strings.Lines(out.String()) {
		if !strings.Contains(line, `"queue":{"base64"`) {
			named.WriteString(line)
		}
	}
	if _, err := other.Import(t.Context(), root, strings.NewReader(named.String()), false); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Export(t.Context(), root, "state:parked", &again); err != nil {
		t.Fatal(err)
	}
	messages := func(lines string) (all []string) {
		for line := range strings.Lines(lines) {
			var l map[string]json.RawMessage
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatal(err)
			}
			for _, own := range []string{"id", "made_from", "forward", "due", "parked_at", "notes", "attempt", "parked_for"} {
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
	commands := [][]string{{"messages", "list", "--limit", "2000"}, {"groups"}, {"queues"}, {"status"}, {"ops", "list"}, {"ops", "show", operation}, {"audit"},
		{"replay", "--query", "state:parked", "--dry-run"}, {"discard", "--dry-run", ids[0]}}
	for i := range ids {
		if i%6 == 0 {
			commands = append(commands, []string{"messages", "show", ids[i]})
		}
	}
	for _, format := range []string{"json", "jsonl", "yaml", "csv", "name"} {
		commands = append(commands, []string{"messages", "list", "--limit", "2000", "-o", format})
	}
	for _, format := range []string{"json", "yaml"} {
		commands = append(commands, []string{"groups", "-o", format}, []string{"queues", "-o", format}, []string{"messages", "show", ids[3], "-o", format}, []string{"audit", "-o", format})
	}
	for _, command := range commands {
		var out, errOut bytes.Buffer
		if code := cli.Run(t.Context(), append(command, "--address", strings.TrimPrefix(s.base, "http://")), &out, &errOut, cli.Build{Version: "test"}); code != 0 {
			t.Errorf("%q ends with %d: %.300s", command, code, errOut.String())
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
