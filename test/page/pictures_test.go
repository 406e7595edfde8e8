package page_test

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/demo"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

var update = flag.Bool("update", false, "make the pictures of the README again")

// picture keeps what the tab shows, as high as the page is, for a person to look at.
func (b *tab) picture(name string) []byte {
	b.t.Helper()
	folder := cmp.Or(os.Getenv("REDRIVE_SCREENSHOTS"), "screenshots")
	ctx, cancel := limited(b.ctx)
	defer cancel()
	full, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, name+".png"), full, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return full
}

// small is the top of a picture in few colours: its 255 most frequent ones, and of others the
// nearest of them.
func small(full []byte) ([]byte, error) {
	img, err := png.Decode(bytes.NewReader(full))
	if err != nil {
		return nil, err
	}
	count := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(img.At(x, y)).(color.RGBA) }
	r := img.Bounds()
	r.Max.Y = min(r.Max.Y, 1100)
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	often := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return cmp.Compare(count[b], count[a]) })
	var palette color.Palette
	for _, c := range often[:min(len(often), 255)] {
		palette = append(palette, c)
	}
	nearest := map[color.RGBA]uint8{}
	for _, c := range often {
		nearest[c] = uint8(palette.Index(c))
	}
	out := image.NewPaletted(r, palette)
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			out.SetColorIndex(x, y, nearest[at(x, y)])
		}
	}
	var b bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, out)
	return b.Bytes(), err
}

// People look at the pictures, which REDRIVE_TEST_LONG=1 takes. Those of the README are of the demo
// instead, and made again by go test ./test/page -run TestPictures -update.
func TestPictures(t *testing.T) {
	if *update {
		picturesOfTheDemo(t)
	} else if !brokertest.Long() {
		t.Skip("pictures prove nothing by themselves: REDRIVE_TEST_LONG=1 takes them")
	}
	s := newShop(t, options{})
	now := time.Now()
	for i := range 1400 { // more than a small shop, for the operation
		r := webtest.Message(6*i, store.Parked, now)
		r.ID = uuid.New()
		r.FailedAt = now.Add(-time.Duration(4*60+i) * time.Minute)
		r.FirstFailed, r.Due = r.FailedAt.Add(-400*time.Second), r.FailedAt
		s.add(t, r)
	}
	op, err := s.Start(t.Context(), webtest.Root, s.Planned("state:parked queue:orders.* error:timeout age:>3h"), operations.Start{Rate: 40, Reason: "gateway is back (INC-2231)"})
	must(t, err)
	b := newTab(t, s.base)
	b.expect("422")
	take := func(name, path string) {
		b.open(path)
		b.picture(name)
	}
	take("overview-light", "/")
	take("operation", "/operations/"+op.ID)
	b.open("/")
	b.scheme("dark")
	b.picture("overview-dark")
	b.open("/messages/" + s.Has.Order)
	b.picture("message-dark")
	b.open("/operations/" + op.ID)
	b.picture("operation-dark")
	b.open("/messages")
	b.picture("messages-dark")
	b.scheme("light")
	take("messages", "/messages")
	take("messages-waiting", "/messages?q=state:waiting")
	take("query-wrong", "/messages?q=queue:orders+staat:parked")
	take("message", "/messages/"+s.Has.Order)
	take("groups", "/groups")
	take("queues", "/queues")
	take("plan", "/plans/"+s.Has.Plan)
	take("plan-blocked", "/plans/"+s.Has.Blocked)
	take("operations", "/operations")
	take("policies", "/policies")
	take("audit", "/audit")
	take("health", "/health")
	take("help", "/help")
	take("signin", "/signin")
	b.open("/messages/" + s.Has.Order + "/edit")
	b.write(`input[name="value.1"]`, "globex")
	b.follow("#preview", "#diff")
	b.picture("edit")
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		b.open("/policies")
		b.click("section:has(#p-orders) .storm-of summary")
		b.picture("policies-storm-" + scheme)
	}
	b.scheme("light")
	b.size(320, 640)
	take("narrow-overview", "/")
	take("narrow-messages", "/messages")
	take("narrow-message", "/messages/"+s.Has.Order)
}

var pageOf = regexp.MustCompile(`The page: (http://[0-9.:]+)/`)

// publish makes what the tab shows a picture of the README.
func (b *tab) publish(name string) {
	b.t.Helper()
	data, err := small(b.picture("demo-" + name))
	if err == nil {
		err = os.WriteFile("../../docs/images/"+name+".png", data, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// picturesOfTheDemo takes the README's pictures of what make run shows after a minute
// and a half, when a few invoices are parked and the payment service is down.
func picturesOfTheDemo(t *testing.T) {
	brokers := brokertest.All(t)
	vhost := brokertest.NewVHost(t, brokers[len(brokers)-1])
	said := &brokertest.Output{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		if err := demo.Run(ctx, demo.Options{Broker: vhost.URL(), Management: vhost.Management, Out: said, Version: "demo"}); err != nil {
			t.Errorf("the demo ended with %v, and said:\n%s", err, said)
		}
	})
	brokertest.Eventually(t, "the demo has its page", func() bool { return pageOf.MatchString(said.String()) })
	b := newTab(t, pageOf.FindStringSubmatch(said.String())[1])

	// The story goes on for longer than a page may take.
	becomes := func(is string) {
		for range 40 {
			if js[bool](b, `new Promise(answer => { let n = 0, i = setInterval(() => { if (`+is+` || ++n > 50) { clearInterval(i); answer(n <= 50); } }, 100) })`) {
				return
			}
		}
		t.Fatalf("in the demo it never became so: %s\n%s", is, b.where())
	}
	b.open("/")
	becomes(`document.querySelector('[data-live="parked"]').textContent >= 8`)
	b.leave(func() { b.open("/messages?q=state%3Aparked") }, "#matching")
	b.follow(`#matching button[value="replay"]`, "#start-button")
	b.write("input[name=rate]", "0.2")
	b.write("input[name=reason]", "the lamps have prices again")
	b.follow("#start-button", "#progress")
	operation := b.path()

	b.open("/messages?q=state%3Aparked+error%3Aprice")
	b.keys("j")
	b.leave(func() { b.keys("\r") }, "#body .schema")
	b.publish("message")
	b.open(operation)
	b.says("#outcomes", "done")
	b.publish("operation")
	b.open("/")
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		// The numbers follow at once, the calendar every few seconds.
		becomes(`(n => n >= 8 && n == document.querySelector("#calendar td.n")?.textContent)(document.querySelector('[data-live="waiting"]').textContent)`)
		b.publish("overview-" + scheme)
	}
	b.expect("ERR_CONNECTION") // the page outlives the demo
}
