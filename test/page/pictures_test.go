package page_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

var update = flag.Bool("update", false, "make the pictures of the README anew")

// picture keeps what the tab shows, as high as the page is, for a person to look at.
func (b *tab) picture(name string) {
	b.t.Helper()
	ctx, cancel := limited(b.ctx)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(pictures(b.t), name+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// The pictures are artefacts: people look at them.
func TestPictures(t *testing.T) {
	s := newShop(t, options{})
	b := newTab(t, s.base)
	b.expect("422")
	take := func(name, path string) {
		b.open(path)
		b.picture(name)
	}
	take("overview-light", "/")
	b.scheme("dark")
	b.picture("overview-dark")
	b.open("/messages/" + s.order)
	b.picture("message-dark")
	b.open("/operations/" + s.running)
	b.picture("operation-dark")
	b.open("/messages")
	b.picture("messages-dark")
	b.scheme("light")
	take("messages", "/messages")
	take("messages-waiting", "/messages?q=state:waiting")
	take("query-wrong", "/messages?q=queue:orders+staat:parked")
	take("message", "/messages/"+s.order)
	take("groups", "/groups")
	take("queues", "/queues")
	take("plan", "/plans/"+s.plan)
	take("plan-blocked", "/plans/"+s.blocked)
	take("operations", "/operations")
	take("operation", "/operations/"+s.running)
	take("policies", "/policies")
	take("audit", "/audit")
	take("health", "/health")
	take("help", "/help")
	take("signin", "/signin")
	b.open("/messages/" + s.order + "/edit")
	b.write(`input[name="value.1"]`, "globex")
	b.follow("#preview", "#diff")
	b.picture("edit")
	b.size(320, 640)
	take("narrow-overview", "/")
	take("narrow-messages", "/messages")
	take("narrow-message", "/messages/"+s.order)
}
