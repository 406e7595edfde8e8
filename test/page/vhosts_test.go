package page_test

import (
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/webui"
)

// three virtual hosts, of which the scene is the second, and the last is not ready.
func three(names ...string) []webui.VHost {
	return []webui.VHost{{Name: names[0], URL: "/", Ready: true}, {Name: names[1], URL: httpapi.Base(names[1]) + "/", Ready: true, Here: true}, {Name: names[2], URL: httpapi.Base(names[2]) + "/"}}
}

// A virtual host's page works under its base as one that is alone does: signing in, each
// page with its stream of events, keys, signing out. The tab complains about whatever
// is asked for beside the base.
func TestTheVirtualHostsPage(t *testing.T) {
	t.Parallel()
	s := newShop(t, options{signIn: true, vhosts: three("/", "shop/eu", "billing")})
	b := newTab(t, s.base)
	b.expect("422", "404", "409")
	step := steps(t)
	step("who signs in goes on where they wanted to", func() {
		b.open("/messages/" + s.order)
		b.shows("input[name=token]")
		if b.has(".vhosts") {
			t.Error("who is not signed in is told of the virtual hosts")
		}
		b.write("input[name=token]", "rd_wrong")
		b.leave(func() { b.keys("\r") }, "#refused")
		b.write("input[name=token]", s.token)
		b.leave(func() { b.keys("\r") }, "#body pre")
		if here := b.path(); here != "/v/shop%2Feu/messages/"+s.order {
			t.Errorf("they are at %s", here)
		}
	})
	step("each page lives, and shows the virtual hosts", func() {
		b.each(normal, s, func(page string) {
			if page == "/signin" {
				return
			}
			b.says("#live-state", "Live")
			b.axe("shop/eu " + page)
			if says := js[string](b, `document.querySelector(".vhosts").innerText.replace(/\s+/g, " ")`); says != "Virtual host: / shop/eu billing not ready" {
				t.Errorf("%s shows the virtual hosts as %q", page, says)
			}
		})
	})
	step("the script counts what a query finds, and checks one that is written", func() {
		b.open("/messages?q=")
		b.until("they are counted", `/[0-9]/.test(document.querySelector(".tabs .total")?.innerText)`)
		b.write("#q", "staat:x")
		b.says("#query-says", "Character 1")
	})
	step("the key / leads to the messages", func() {
		b.open("/health")
		b.leave(func() { b.keys("/") }, "#messages")
		if here := b.path(); here != "/v/shop%2Feu/messages" {
			t.Errorf("it leads to %s", here)
		}
	})
	step("everybody can read it", func() {
		b.open("/")
		b.look("virtual hosts")
		b.picture("vhosts-light")
		b.scheme("dark")
		b.picture("vhosts-dark")
		b.scheme("light")
		b.size(320, 640)
		b.picture("vhosts-narrow")
		b.size(1280, 900)
	})
	step("the others are reached by Tab, and without scripts", func() {
		call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		b.open("/queues")
		b.expect("a request to elsewhere")
		b.leave(func() {
			for !js[bool](b, `document.activeElement.matches(".vhosts a:not([aria-current])")`) {
				b.keys("\t")
			}
			b.keys("\r")
		}, "body")
		if here := b.path(); here != "/" {
			t.Errorf("the first of them is at %s", here)
		}
		b.open("/")
		b.follow(".who button", "input[name=token]")
		if here := b.path(); here != "/v/shop%2Feu/signin" {
			t.Errorf("signing out leads to %s", here)
		}
	})
}

// A virtual host can have any name.
func TestVirtualHostsOfAnyName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a-very-long-name-", 15)[:255]
	s := newShop(t, options{vhosts: three(long, "\"><img src=x onerror=alert(1)>\u202e", "{{.}}' $(id)")})
	b := newTab(t, s.base)
	b.open("/messages")
	b.says("#live-state", "Live")
	b.look("odd virtual hosts")
	b.picture("vhosts-odd")
	if b.has("img") || !js[bool](b, `document.querySelector(".vhosts [aria-current]").innerText.includes("\\u{202e}")`) {
		t.Error("a name is more than text")
	}
	b.says("#command", "redrive --vhost $'")
}
