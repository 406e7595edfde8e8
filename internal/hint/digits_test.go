package hint

import (
	"fmt"
	"slices"
	"testing"

	"github.com/redrive-mq/redrive/testenv/expect"
)

// Each name comes before all that follow it, and none is equal to another.
func TestNaturalOrder(t *testing.T) {
	names := []string{"", "0", "00", "2", "10", "a", "a1", "a1b", "a01", "a2", "a10", "a10.1", "a10.9", "a10.10", "a-1", "b",
		"q.007.b", "q.7.a", "q.8", "q.18446744073709551616", "q.18446744073709551617", "é"}
	slices.SortFunc(names, Natural)
	for i, a := range names {
		for j, b := range names {
			expect.Equal(t, Natural(a, b) < 0, i < j, "%q before %q", a, b)
		}
	}
	orders := []string{"orders.10", "orders.2", "orders.1", "orders.02", "orders", "orders.10.x", "orders.9.x"}
	slices.SortFunc(orders, Natural)
	expect.Equal(t, fmt.Sprint(orders), "[orders orders.1 orders.02 orders.2 orders.9.x orders.10 orders.10.x]", "in order")
}

func TestGroup(t *testing.T) {
	for number, want := range map[string]string{"0": "0", "999": "999", "1000": "1,000", "-999": "-999", "-1204": "-1,204", "123456": "123,456", "1234567": "1,234,567"} {
		if got := Thousands(number); got != want {
			t.Errorf("%s is %s, want %s", number, got, want)
		}
	}
}
