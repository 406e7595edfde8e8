package page_test

import (
	"fmt"
	"testing"
)

// What a policy does in an outage is unfolded, says it in words too, and is for
// everybody, in the light and in the dark. axe-core does not judge the colours of what
// is drawn, so that is done here, as WCAG counts: 4.5 for text, 3 for lines.
func TestAPolicysStorm(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{})
	b := newTab(t, s.base)
	b.open("/policies")
	if b.has(`section:has(#p-webhooks) .storm-of`) {
		t.Error("a policy that retries nothing has a picture of its retries")
	}
	const orders = `section:has(#p-orders) .storm-of`
	b.click(orders + " summary")
	b.shows(orders + " svg")
	b.until("the picture says what it shows", fmt.Sprintf(`/while it is down/.test(document.querySelector(%q).getAttribute("aria-label"))`, orders+" svg"))
	b.look("a policy's storm, /policies")
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		b.picture("policies-storm-" + scheme)
		for _, dim := range js[[]string](b, fmt.Sprintf(`(() => {
			const rgb = c => c.match(/[\d.]+/g).slice(0, 3).map(v => v / 255);
			const light = c => rgb(c).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
			const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
			const svg = document.querySelector(%q), bad = [];
			const grounds = [...svg.querySelectorAll("rect.storm-limp, rect.storm-down, rect.storm-paper")].reverse(); // the uppermost first
			const under = e => {
				const r = e.getBoundingClientRect(), x = r.left + r.width / 2, y = r.top + r.height / 2;
				return grounds.find(g => { const b = g.getBoundingClientRect(); return b.left <= x && x <= b.right && b.top <= y && y <= b.bottom; });
			};
			const judge = (what, colour, ground, least) => {
				const c = contrast(colour, getComputedStyle(ground).fill);
				if (c < least) bad.push(what + " on " + ground.getAttribute("class") + ": " + c.toFixed(2));
			};
			for (const e of svg.querySelectorAll("text")) judge(e.textContent, getComputedStyle(e).fill, under(e), 4.5);
			for (const e of svg.querySelectorAll("path.storm-requeue, path.storm-fixed, path.storm-backoff, path.storm-redrive"))
				for (const g of grounds) judge("the line " + e.getAttribute("class"), getComputedStyle(e).stroke, g, 3);
			return bad;
		})()`, orders+" svg")) {
			t.Errorf("%s: too little contrast: %s", scheme, dim)
		}
	}
}
