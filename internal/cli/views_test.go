package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
)

// fill puts a stranger's texts into all that holds text, and something into the rest.
func fill(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(stranger(t, "text"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.Int64Range(0, 1e6).Draw(t, "number"))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i))
		}
	case reflect.Pointer:
		if rapid.Bool().Draw(t, "there") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem())
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(rapid.Int64Range(0, 2e9).Draw(t, "time"), 0).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	}
}

func filled[T any](t *rapid.T) (v T) {
	fill(t, reflect.ValueOf(&v).Elem())
	return v
}

// views draws each table with what strangers say.
var views = map[string]func(*rapid.T, io.Writer, time.Time){
	"preview": func(t *rapid.T, w io.Writer, now time.Time) { preview(w, filled[operations.Plan](t), now) },
	"message": func(t *rapid.T, w io.Writer, now time.Time) { detail(w, filled[inspect.Detail](t), now) },
	"groups":  func(t *rapid.T, w io.Writer, now time.Time) { groups(w, filled[[]inspect.Group](t), now) },
	"queues":  func(t *rapid.T, w io.Writer, now time.Time) { queues(w, filled[[]inspect.Queue](t), now) },
	"ledger":  func(t *rapid.T, w io.Writer, now time.Time) { ledger(w, filled[inspect.Ledger](t), now) },
	"operations": func(t *rapid.T, w io.Writer, now time.Time) {
		operationsTable(w, filled[[]operations.Operation](t), now)
	},
	"ended":    func(t *rapid.T, w io.Writer, _ time.Time) { ended(w, filled[operations.Operation](t)) },
	"audit":    func(t *rapid.T, w io.Writer, _ time.Time) { entries(w, filled[[]audit.Entry](t)) },
	"progress": func(t *rapid.T, w io.Writer, _ time.Time) { (&jsonLines{w: w}).update(filled[operations.Operation](t)) },
	"formats": func(t *rapid.T, w io.Writer, _ time.Time) {
		format := rapid.SampledFrom([]string{"json", "jsonl", "yaml", "csv", "name"}).Draw(t, "format")
		all := filled[[]inspect.Group](t)
		if err := list(&program{out: w, format: format}, all, all, func(g inspect.Group) string { return g.Queue }, nil); err != nil {
			t.Fatal(err)
		}
	},
	"bar": func(t *rapid.T, w io.Writer, _ time.Time) {
		var b bytes.Buffer
		(&bar{w: &b}).update(filled[operations.Operation](t))
		_, _ = io.WriteString(w, strings.TrimPrefix(b.String(), "\r"))
	},
	"export": func(t *rapid.T, w io.Writer, _ time.Time) {
		h := &harmlessWriter{w: w, to: harmless}
		for _, piece := range rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "pieces") {
			if _, err := h.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
	},
}

func TestNoViewSpeaksToTheTerminal(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for name, draw := range views {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				out := text(func(w io.Writer) { draw(t, w, now) })
				if i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
					t.Fatalf("a terminal obeys %q", out[i:])
				}
			})
		})
	}
}

// What is written as YAML is read by others as what it was.
func TestYAMLMeansTheSameAsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := map[string]any{stranger(t, "name"): filled[[]inspect.Group](t), "empty": []any{}, "none": map[string]any{}, "yes": "no", "n": nil, "deep": [][]int{{1, 2}, {}}, "wide": "\U000e0001\U0001f600"}
		text, err := yamlOf(v)
		if err != nil {
			t.Fatal(err)
		}
		var got, want any
		if err := yaml.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		asJSON, _ := json.Marshal(got)
		_ = json.Unmarshal(asJSON, &got)
		asJSON, _ = json.Marshal(v)
		_ = json.Unmarshal(asJSON, &want)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("%s\nin\n%s", d, text)
		}
	})
}

// JSON that is made harmless means what it meant.
func TestHarmlessJSONMeansTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := strings.ToValidUTF8(stranger(t, "text"), "\ufffd")
		out, err := jsonOf(want, "")
		var got string
		if err == nil {
			err = json.Unmarshal([]byte(out), &got)
		}
		if err != nil || got != want {
			t.Fatalf("%q became %q (%v)", want, got, err)
		}
	})
}

func TestCSVHasNoFormulas(t *testing.T) {
	var out bytes.Buffer
	all := []inspect.Queue{{Name: "=HYPERLINK(1)", Policy: "@x"}}
	if err := list(&program{out: &out, format: "csv"}, all, all, queueName, nil); err != nil {
		t.Fatal(err)
	}
	head, row, _ := strings.Cut(out.String(), "\n")
	if !strings.HasPrefix(head, "queue,enrolled,policy,way,waiting,") || !strings.HasPrefix(row, "'=HYPERLINK(1),false,'@x,") {
		t.Errorf("%s\n%s", head, row)
	}
}

func TestTimesAsPeopleSayThem(t *testing.T) {
	for text, ok := range map[string]bool{"in 10m": true, "in 2d": true, "2026-11-21T18:30:00Z": true, "2026-11-21T18:30:00+02:00": true,
		"10m": false, "in -5m": false, "in 0s": false, "tomorrow": false, "2026-11-21 18:30": false} {
		if got, err := parseWhen(text); (err == nil) != ok || ok && got == nil {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestNumbersOfThings(t *testing.T) {
	for n, want := range map[int64]string{0: "0 messages", 1: "1 message", 999: "999 messages", 1204: "1,204 messages", 1234567: "1,234,567 messages"} {
		if got := messages(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestAMessageShowsWhatAFrameworkWrote(t *testing.T) {
	var out bytes.Buffer
	detail(&out, inspect.Detail{Message: inspect.Message{Error: "Shop.NoStock: no stock"}, Framework: &inspect.Framework{Name: "MassTransit", Queue: "orders", Attempts: 4}}, time.Now())
	if !strings.Contains(out.String(), "MassTransit") || !strings.Contains(out.String(), "queue orders; attempts 4") || !strings.Contains(out.String(), "Shop.NoStock: no stock") {
		t.Errorf("it is shown as\n%s", out.String())
	}
}
