package page_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// What happens while somebody looks.
func TestThePageLives(t *testing.T) {
	s := newService(t)
	b := newTab(t, s.base)
	step := steps(t)
	parked := int64(len(s.parked))
	fails := func() {
		t.Helper()
		s.fail("webhooks", `{"to": "acme"}`)
		parked++
		brokertest.Eventually(t, "it is parked", func() bool { return strings.Contains(s.counts("state:parked"), fmt.Sprintf(">%d<", parked)) })
	}
	const under = `document.elementFromPoint(200, at.y)?.closest("tr")?.id`

	step("what is new waits, and no row moves under the cursor", func() {
		b.open("/messages?q=state%3Aparked")
		b.says("#live-state", "Live")
		js[bool](b, `{ const r = document.querySelectorAll("#messages tbody tr")[2].getBoundingClientRect(); globalThis.at = { y: r.top + r.height / 2 }; true }`)
		row := js[string](b, under)
		b.run(chromedp.MouseEvent("mouseMoved", 200, js[float64](b, `at.y`)))
		fails()
		b.says("#newer", "1 new")
		if now := js[string](b, under); now != row {
			t.Errorf("under the cursor was %s, and is %s", row, now)
		}
		if n := js[int64](b, `document.querySelectorAll("#messages tbody tr").length`); n != parked-1 {
			t.Errorf("the list has %d rows", n)
		}
		b.look("new ones wait")
		b.follow("#newer a", "#messages")
		b.says("#messages tbody tr", "webhooks")
	})
	step("the numbers follow, and stand still on a pause", func() {
		b.open("/")
		parkedIs := func() string { return js[string](b, `document.querySelector('[data-live="parked"]').textContent`) }
		b.says("#live-state", "Live")
		fails()
		b.says(`[data-live="parked"]`, fmt.Sprint(parked))
		b.click("#live-pause")
		b.shows("#stale")
		b.look("paused")
		fails()
		if now := parkedIs(); now != fmt.Sprint(parked-1) {
			t.Errorf("while it is paused it says %s", now)
		}
		b.click("#live-resume")
		b.says(`[data-live="parked"]`, fmt.Sprint(parked))
	})
	step("it tells when the service is gone, and when it is back", func() {
		b.expect("ERR_", "Failed to load")
		s.stop()
		b.shows("#disconnected")
		b.says("#live-state", "Disconnected")
		b.look("disconnected")
		s.start()
		b.until("it is connected again", `document.getElementById("disconnected").hidden && document.getElementById("live-state").textContent == "Live"`)
	})
}
