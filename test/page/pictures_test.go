package page_test

import (
	"bytes"
	"cmp"
	"flag"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/store"
)

var update = flag.Bool("update", false, "make the pictures of the README again")

// picture keeps what the tab shows, as high as the page is, for a person to look at.
func (b *tab) picture(name string) []byte {
	b.t.Helper()
	ctx, cancel := limited(b.ctx)
	defer cancel()
	full, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(pictures(b.t), name+".png"), full, 0o644)
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

// The pictures are artefacts: people look at them. Those of the README are of the demo
// instead, and made again by go test ./test/page -run TestPictures -update.
func TestPictures(t *testing.T) {
	if *update {
		picturesOfTheDemo(t)
	}
	s := newShop(t, options{})
	now := time.Now()
	for i := range 1400 { // more than a small shop, for the operation
		r := message(6*i, store.Parked, now)
		r.ID = uuid.New()
		r.FailedAt = now.Add(-time.Duration(4*60+i) * time.Minute)
		r.FirstFailed, r.Due = r.FailedAt.Add(-400*time.Second), r.FailedAt
		s.add(t, r)
	}
	op, err := s.Start(t.Context(), root, s.planned(t, "state:parked queue:orders.* error:timeout age:>3h"), operations.Start{Rate: 40, Reason: "gateway is back (INC-2231)"})
	if err != nil {
		t.Fatal(err)
	}
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
	b.open("/messages/" + s.order)
	b.picture("message-dark")
	b.open("/operations/" + op.ID)
	b.picture("operation-dark")
	b.open("/messages")
	b.picture("messages-dark")
	b.scheme("light")
	take("messages", "/messages")
	take("messages-waiting", "/messages?q=state:waiting")
	take("query-wrong", "/messages?q=queue:orders+staat:parked")
	take("message", "/messages/"+s.order)
	take("errors", "/errors")
	take("queues", "/queues")
	take("plan", "/plans/"+s.plan)
	take("plan-blocked", "/plans/"+s.blocked)
	take("operations", "/operations")
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
