package actions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// exact compares records by the bytes that a store keeps, so that NaNs of one kind
// are equal and those of two are not.
func exact(t interface{ Fatalf(string, ...any) }, want, got *store.Record) {
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }),
		cmp.Comparer(func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) })); d != "" {
		t.Fatalf("(-want +got):\n%s", d)
	}
}

func TestAnyRecordIsTheSameAfterItsLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := storetest.Any(t)
		b, err := appendLine(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(b) || bytes.IndexByte(b, '\n') != len(b)-1 {
			t.Fatalf("not one line of JSON: %s", b)
		}
		got, err := ReadExported(b)
		if err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		exact(t, want, got)
		again, err := appendLine(nil, got)
		if err != nil || !bytes.Equal(b, again) {
			t.Fatalf("its line is another: %v\n%s\n%s", err, b, again)
		}
	})
}

// A field that is new in a record is lost by export and import until lines have it.
func TestEveryFieldOfARecordIsInItsLine(t *testing.T) {
	want := storetest.Everything()
	want.ParkedFor = "its attempts are used up"
	notInLines := map[string]bool{"Imported": true, "Unreadable": true, "HeldUntil": true} // not stored; has nothing to export; of a moment
	for _, v := range []reflect.Value{reflect.ValueOf(*want), reflect.ValueOf(*want.Forward), reflect.ValueOf(want.Message)} {
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; v.Field(i).IsZero() != notInLines[name] {
				t.Errorf("%s.%s is %v: set it here, and keep it in line.go", v.Type(), name, v.Field(i))
			}
		}
	}
	b, err := appendLine(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadExported(b)
	if err != nil {
		t.Fatal(err)
	}
	exact(t, want, got)
}

func TestOddNumbersAndTimesKeepTheirBits(t *testing.T) {
	r := storetest.Everything()
	r.Message.Headers = amqp.Table{
		"nan": math.Float64frombits(0x7ff8000000000123), "nan32": math.Float32frombits(0x7fc00012), "inf": math.Inf(1),
		"zero": math.Copysign(0, -1), "tiny": math.SmallestNonzeroFloat64, "f": float32(0.1), "long": time.Unix(1<<40, 0), "max": int64(math.MaxInt64),
	}
	r.Message.Timestamp = time.Unix(1<<45, 0)
	b, err := appendLine(nil, r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadExported(b)
	if err != nil {
		t.Fatal(err)
	}
	exact(t, r, got)
}

// Headers that nest as deep as fits a frame of RabbitMQ's stop no export, and come
// back as they were.
func TestDeepHeadersKeepTheirDepth(t *testing.T) {
	for _, levels := range []int{1, maxJSONDepth - 1, maxJSONDepth, maxJSONDepth + 1, maxJSONDepth + 2, 20_000} {
		for _, table := range []bool{true, false} {
			var v any = "inside"
			for range levels {
				if table {
					v = amqp.Table{"k": v}
				} else {
					v = []any{v}
				}
			}
			r := storetest.Everything()
			r.Message.Headers = amqp.Table{"deep": v}
			b, err := appendLine(nil, r)
			if err != nil {
				t.Fatalf("%d levels: %v", levels, err)
			}
			got, err := ReadExported(b)
			if err != nil {
				t.Fatalf("%d levels: %v", levels, err)
			}
			is, err := store.AppendRecord(nil, got)
			if err != nil {
				t.Fatal(err)
			}
			if was, err := store.AppendRecord(nil, r); err != nil || !bytes.Equal(was, is) {
				t.Errorf("%d levels came back as others, %v", levels, err)
			}
		}
	}
}

// A line from anywhere is an error or a record, never a panic, and what is read is
// the same when it is written and read again.
func FuzzParseLine(f *testing.F) {
	b, err := appendLine(nil, storetest.Everything())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"redrive":1,"id":"","queue":{"base64":"/w=="},"state":"parked","due":"@1.5","message":{"headers":[{"name":"a","type":"array","value":[{"type":"void"}]}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ReadExported(b)
		if err != nil {
			return
		}
		line, err := appendLine(nil, r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ReadExported(line)
		if err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		exact(t, r, again)
	})
}

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
		expect.Equal(t, strings.Join(got, "|"), c.want, "%v and %v", c.was, c.is)
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

// Texts that a verb is missing from would be empty on the page and the command line.
func TestAVerbHasAllThatIsSaidOfIt(t *testing.T) {
	for _, v := range Verbs {
		if v.Title == "" || v.One == "" || v.More == "" || v.Role == 0 || v.Event == "" {
			t.Errorf("%s: something is missing of %+v", v.Verb, v)
		}
		if v.do != nil && (v.Before == "" || v.Offered == nil || v.Short == "") {
			t.Errorf("%s: something is missing of %+v", v.Verb, v)
		}
		if err := (RecordChange{}).Check(); v.do != nil && !strings.Contains(err.Error(), string(v.Verb)) {
			t.Errorf("%v: does not name %s", err, v.Verb)
		}
	}
}

// Of a message that cannot be read every verb says that it cannot, as a failure: not that it
// is not there any more, which skips it.
func TestWhatCannotBeReadIsAFailure(t *testing.T) {
	for _, v := range Verbs {
		o, e := RecordChange{Verb: v.Verb}.outcome(MessageRef{ID: "1"}, &store.Record{Unreadable: store.ErrUnreadable}, time.Now())
		if o.Outcome != Failed || o.Why != store.ErrUnreadable.Error() || e.Keep || e.Delete || len(e.Add) > 0 {
			t.Errorf("%s: %+v, %+v", v.Verb, o, e)
		}
	}
	if errors.Is(store.ErrUnreadable, store.ErrNotFound) {
		t.Error("what cannot be read is said not to be there")
	}
}
