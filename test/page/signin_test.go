package page_test

import (
	"testing"

	"github.com/chromedp/cdproto/emulation"

	"github.com/redrive-mq/redrive/internal/store"
)

func TestSigningIn(t *testing.T) {
	s := newShop(t, options{signIn: true})
	b := newTab(t, s.base)
	b.open("/messages/" + s.order)
	b.shows("input[name=token]")
	b.look("signed out")
	b.write("input[name=token]", "rd_wrong")
	b.leave(func() { b.keys("\r") }, "#refused")
	b.look("refused")
	b.write("input[name=token]", s.token)
	b.leave(func() { b.keys("\r") }, "#body pre") // where they wanted to go
	b.says("#body", "9007199254740993")
	b.says(".who", "dana")
	b.follow(".who button", "input[name=token]")
	b.open("/")
	b.shows("input[name=token]")
}

// Forms and links do without scripts; what does not is left out.
func TestWithoutScripts(t *testing.T) {
	s := newShop(t, options{})
	b := newTab(t, s.base)
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.open("/messages")
	b.write("#q", `state:waiting queue:orders.* error:stock`)
	b.follow(".query button", "#messages")
	b.click("#messages tbody tr:first-child input")
	b.follow(`#actions button[value="replay"]`, "#confirm-button")
	b.follow("#confirm-button", "#did")
	b.open("/messages/" + s.order)
	b.follow("#edit", "#content")
	b.write(`input[name="value.1"]`, "globex")
	b.follow("#preview", "#diff")
	b.open("/messages?q=state:parked+queue:mail.send")
	b.follow(`#matching button[value="discard"]`, "#start-button")
	b.follow("#start-button", "#progress")
	for _, script := range []string{"#live", "button[data-copy]", "#all"} {
		b.open("/messages")
		if js[bool](b, `!!document.querySelector("`+script+`")?.checkVisibility()`) {
			t.Errorf("without scripts, %s is shown and does nothing", script)
		}
	}
	n := 0
	if err := s.store.Scan(t.Context(), store.Range{State: store.Discarded}, func(store.Listed) (bool, error) { n++; return true, nil }); err != nil || n <= 6 {
		t.Errorf("%d are discarded: %v", n, err)
	}
}
