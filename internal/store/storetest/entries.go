package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/store"
)

// entries is the side table as text.
func entries(t *testing.T, s store.Store, prefix, after string) string {
	t.Helper()
	var got []string
	err := s.Entries(context.Background(), prefix, after, func(e store.Entry) (bool, error) {
		got = append(got, e.Name+"="+string(e.Value))
		return true, nil
	})
	if err != nil {
		t.Error(err)
	}
	return strings.Join(got, " ")
}

func sideTable(t *testing.T, e Engine) {
	s, ctx := open(t, e), context.Background()
	put := func(all ...store.Entry) {
		t.Helper()
		must(t, s.PutEntries(ctx, all))
	}
	put(store.Entry{Name: "a/2", Value: []byte("two")}, store.Entry{Name: "b", Value: []byte{}}, store.Entry{Name: "a/10", Value: []byte("ten")})
	put(store.Entry{Name: "a/2", Value: []byte("zwei")}, store.Entry{Name: "a", Value: []byte("x")}, store.Entry{Name: "none"})
	put(store.Entry{Name: "a/\xff", Value: []byte("f")}, store.Entry{Name: "a0", Value: []byte("0")})
	if again := reopened(t, e, s); again != nil {
		s = again
	}
	for _, c := range []struct{ prefix, after, want string }{
		{"", "", "a=x a/10=ten a/2=zwei a/\xff=f a0=0 b="},
		{"a/", "", "a/10=ten a/2=zwei a/\xff=f"},
		{"a/", "a/10", "a/2=zwei a/\xff=f"},
		{"a/", "a/11", "a/2=zwei a/\xff=f"},
		{"a/", "a", "a/10=ten a/2=zwei a/\xff=f"},
		{"a/", "b", ""},
		{"", "a0", "b="},
		{"c", "", ""},
	} {
		want(t, fmt.Sprintf("prefix %q after %q", c.prefix, c.after), entries(t, s, c.prefix, c.after), c.want)
	}
	for name, wanted := range map[string][]byte{"a/2": []byte("zwei"), "b": {}, "none": nil, "a/": nil} {
		if v, err := s.Entry(ctx, name); err != nil || !slices.Equal(v, wanted) || (v == nil) != (wanted == nil) {
			t.Errorf("entry %q: %q, %v", name, v, err)
		}
	}
	n := 0
	if err := s.Entries(ctx, "", "", func(store.Entry) (bool, error) { n++; return false, nil }); n != 1 || err != nil {
		t.Errorf("%d visits, %v: one was enough", n, err)
	}
	add(t, s, parked("a", "not in the table"))
	for _, c := range []struct{ prefix, left string }{{"c", "a=x a/10=ten a/2=zwei a/\xff=f a0=0 b="}, {"a/", "a=x a0=0 b="}, {"", ""}} {
		must(t, s.DeleteEntries(ctx, c.prefix))
		want(t, "left after deleting "+c.prefix, entries(t, s, "", ""), c.left)
	}
	want(t, "records", scan(t, s, store.Range{}), "not in the table")
}
