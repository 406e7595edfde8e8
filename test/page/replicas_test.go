package page_test

import (
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/inspect"
)

// Of three replicas one leads, one has trouble, and one is not heard of any more: the
// Health page tells them apart, and says of the silent one no longer that it is ready. When
// it is gone, so is its row. Health and Overview are for everybody then too.
func TestReplicasAreForEverybody(t *testing.T) {
	t.Parallel()
	shop, handler, _ := madeUp()
	replica := func(id, version string, silent time.Duration) inspect.Replica {
		return inspect.Replica{ID: id, Address: "redrive-" + id[8:9] + ".redrive.shop.svc.cluster.local:8250", Version: version,
			Since: shop.Now.Add(-51 * time.Hour), Beat: shop.Now.Add(-silent), Ready: true} // problems of single queues leave it ready
	}
	shop.Replicas = []inspect.Replica{replica("redrive-0-5f1c9a3e", "1.4.0", 0), replica("redrive-1-07d2b6c4", "1.4.0", 0), replica("redrive-2-c81e728d", "1.3.2", 4*time.Second)}
	shop.Replicas[0].Leads, shop.Replicas[1].Self, shop.Replicas[1].Problems = true, true, shop.Problems
	b := troubled(t, handler)
	pictures := func(name string) {
		t.Helper()
		b.picture(name + "-light")
		b.scheme("dark")
		b.picture(name + "-dark")
		b.scheme("light")
		b.size(320, 640)
		b.picture(name + "-narrow")
		b.size(1280, 900)
	}

	b.open("/health")
	rows := js[[][]string](b, `[...document.querySelectorAll("#replicas tbody tr")].map(r => [...r.cells].map(c => c.innerText.trim()))`)
	if len(rows) != 3 {
		t.Fatalf("there are three replicas, and the page has %q", rows)
	}
	for i, want := range []struct{ id, role, state string }{
		{"redrive-0-5f1c9a3e", "leads", "ready"},
		{"redrive-1-07d2b6c4 (this one)", "follows", "ready\n" + shop.Problems[0]},
		{"redrive-2-c81e728d", "follows", "not heard of"},
	} {
		if r := rows[i]; r[0] != want.id || r[1] != want.role || r[2] != want.state {
			t.Errorf("of replica %d it says %q, want %+v", i, r, want)
		}
	}
	b.look("three replicas /health")
	pictures("replicas-health")
	b.lookAt("three replicas", "/")
	pictures("replicas-overview")

	shop, handler, _ = madeUp()
	shop.Replicas = []inspect.Replica{replica("redrive-0-5f1c9a3e", "1.4.0", 0), replica("redrive-1-07d2b6c4", "1.4.0", 0)}
	b = troubled(t, handler)
	b.open("/health")
	if n := js[int](b, `document.querySelectorAll("#replicas tbody tr").length`); n != 2 {
		t.Errorf("two replicas are left, and the page has %d", n)
	}
	b.look("a replica is gone /health")
}
