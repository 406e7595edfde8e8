package page_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Whatever way a service stops answering, its pages say since when their numbers are old, and
// go on by themselves when it answers again.
func TestAPageWithoutItsService(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	b := newTab(t, s.base)
	b.expect("503", "ERR_")
	for name, way := range map[string]struct{ leaves, comesBack func() }{
		"restarts": {s.leaves, s.comesBack},
		"hangs":    {func() { s.hung.Store(true) }, func() { s.hung.Store(false) }},
	} {
		b.open("/")
		b.says("#live-state", "Live")
		before := time.Now().UTC()
		way.leaves()
		b.shows("#disconnected")
		b.says("#disconnected", "No answer from Redrive since ")
		b.says("#disconnected", "; the numbers are from then.")
		since := js[string](b, `document.querySelector("#disconnected-since").textContent`)
		at, err := time.Parse(time.TimeOnly, since)
		if err != nil {
			t.Fatalf("%s: since %q", name, since)
		}
		at = time.Date(before.Year(), before.Month(), before.Day(), at.Hour(), at.Minute(), at.Second(), 0, time.UTC)
		if late := at.Sub(before); late > 5*time.Second || late < -10*time.Second {
			t.Errorf("%s: its numbers are from %s, and it says %s", name, before.Format(time.TimeOnly), since)
		}
		b.says("#live-state", "Disconnected")
		b.frameAgain(name)
		s.add(t, message(3000+len(name), store.Parked, time.Now()))
		parked := js[string](b, `document.querySelector('[data-live="parked"]').textContent`)
		way.comesBack()
		b.until("it goes on", `document.getElementById("disconnected").hidden && document.getElementById("live-state").textContent == "Live"`)
		b.until("its numbers are new", fmt.Sprintf(`document.querySelector('[data-live="parked"]').textContent != %q`, parked))
	}
}

// A page that cannot be drawn anew, while the stream goes on, is old all the same.
func TestAPageWhoseServiceFails(t *testing.T) {
	t.Parallel()
	shop, handler, _ := madeUp()
	b := troubled(t, handler)
	b.expect("500")
	b.open("/queues")
	b.says("#live-state", "Live")
	shop.Fails = fmt.Errorf("the store cannot be read")
	b.write("#filter", "mail")
	b.says("#disconnected", "Redrive answers with an error since ")
	shop.Fails = nil
	b.until("it goes on", `document.getElementById("disconnected").hidden`)
	b.says("#queues", "mail.send")
}

// The list of queues follows what is typed, and stays filtered where it is sorted and drawn anew.
func TestTheQueuesFollowTheFilter(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	b := newTab(t, s.base)
	names := func() []string {
		return js[[]string](b, `[...document.querySelectorAll("#queues tbody th bdi")].map(e => e.textContent)`)
	}
	b.open("/queues")
	b.shows("#queues")
	if all := names(); !slices.Contains(all, "loyalty.points") || len(all) != 6 {
		t.Errorf("not each enrolled queue is there: %q", all)
	}
	b.write("#filter", "C")
	b.until("it is filtered", `document.querySelectorAll("#queues tbody tr").length == 3`)
	b.follow(`#queues th a[href*="sort=parked"]`, "#queues")
	if at := js[string](b, `location.search`); !strings.Contains(at, "name=C") || !strings.Contains(at, "sort=parked") || !strings.Contains(at, "desc=1") {
		t.Errorf("it leads to %s", at)
	}
	parked := js[[]int](b, `[...document.querySelectorAll("#queues tbody tr")].map(r => Number(r.querySelector('a[href*="parked"]').textContent))`)
	if len(parked) != 3 || !slices.IsSortedFunc(parked, func(a, b int) int { return b - a }) {
		t.Errorf("parked are %v", parked)
	}
	b.write("#filter", "search")
	b.until("it is filtered", `document.querySelectorAll("#queues tbody tr").length == 1`)
	b.look("filtered")
	b.follow("#queues tbody th a", "#flow")
	b.says("h1", "search.index")
	b.look("a queue")
}

// The doctor runs from the page of health, which shows its findings without being loaded again.
func TestTheDoctorRunsFromThePage(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	b := newTab(t, s.base)
	b.open("/health")
	b.says("#doctor", "It has not run")
	b.follow("#run-doctor", "#did")
	b.says("#doctor", "it has no consumers")
	b.says("#doctor", "Start its consumers.")
	b.look("examined")
	b.open("/")
	b.says("#wrong", "the doctor found 1 thing wrong")
}
