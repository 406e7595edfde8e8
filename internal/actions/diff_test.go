package actions

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/decode"
)

func TestWhatDiffersIsNamed(t *testing.T) {
	type o = map[string]any
	for _, c := range []struct {
		was, is any
		want    string
	}{
		{o{"a": "x", "b": o{"c": "y"}}, o{"a": "x", "b": o{"c": "z"}}, "body.b.c: y > z"},
		{o{"a": []any{"1", "2"}}, o{"a": []any{"1", "3", "4"}}, "body.a[1]: 2 > 3|body.a[2]:  > 4"},
		{o{"a": o{"b": "x"}}, o{"a": "x"}, "body.a.b: x > |body.a:  > x"},
		{o{"a": []any{"x"}}, o{"a": o{"b": nil}}, "body.a[0]: x > |body.a.b:  > null"},
		{o{"a": nil}, o{}, "body.a: null > |body:  > {}"},
		{nil, o{"a": true}, "body.a:  > true"},
		{o{"a": []any{}}, o{"a": o{}}, "body.a: [] > {}"},
	} {
		var got []string
		for _, f := range fieldsDiff(&decode.Result{Value: c.was}, &decode.Result{Value: c.is}, nil, amqp.Table{}) {
			got = append(got, fmt.Sprintf("%s: %s > %s", f.Path, f.Before, f.After))
		}
		if text := strings.Join(got, "|"); text != c.want {
			t.Errorf("%v and %v: %s, want %s", c.was, c.is, text, c.want)
		}
	}
	other := fieldsDiff(&decode.Result{Text: "a"}, &decode.Result{Text: "b"}, amqp.Table{"n": int32(1)}, nil)
	if want := []Change{{"body", "a", "b"}, {"header.n", "1", ""}}; !slices.Equal(other, want) {
		t.Errorf("%+v, want %+v", other, want)
	}
}

// A long key above many others does not take its length for each of them.
func TestHostileDocumentsAreCompared(t *testing.T) {
	below := map[string]any{}
	for i := range 20_000 {
		below[fmt.Sprint(i)] = "x"
	}
	other := maps.Clone(below)
	other["7"] = "y"
	long := strings.Repeat("k", 1<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := fieldsDiff(&decode.Result{Value: map[string]any{long: below}}, &decode.Result{Value: map[string]any{long: other}}, nil, nil)
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; len(got) != 1 || len(got[0].Path) > 600 || took > 200 {
		t.Errorf("%d differences, with %d MiB allocated", len(got), took)
	}
}
