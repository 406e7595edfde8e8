package simulate_test

import (
	"bytes"
	"flag"
	"image/png"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/simulate"
)

var update = flag.Bool("update", false, "write docs/images/storm.svg")

// The picture in the README is what the command beside it draws, and the numbers there
// are its.
func TestThePictureOfTheReadme(t *testing.T) {
	const picture = "../../docs/images/storm.svg"
	c, err := config.Load("../../docs/explanation/storm.yaml", func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	r, err := simulate.Run(t.Context(), simulate.Options{Policy: c.Policies[0], Rules: c.Returns["orders"], Rate: 200, Outage: time.Hour, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	svg := r.SVG()
	if *update {
		if err := os.WriteFile(picture, []byte(svg), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if is, err := os.ReadFile(picture); err != nil || string(is) != svg {
		t.Errorf("%s differs from what is drawn (%v): go test ./internal/simulate -run TestThePictureOfTheReadme -update writes it", picture, err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Table(false)[1:] {
		if !strings.Contains(string(readme), row[2]) {
			t.Errorf("the README does not have %s retries (%s)", row[2], row[1])
		}
	}
	var b bytes.Buffer
	if err := r.PNG(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(&b); err != nil {
		t.Error(err)
	}
	for _, no := range []string{"style", "<script", "<style", "onload", "href"} {
		if strings.Contains(svg, no) {
			t.Errorf("the picture has %q, which the page's policy forbids", no)
		}
	}
	for _, coloured := range []bool{false, true} {
		b.Reset()
		if err := r.Plot(&b, 100, coloured); err != nil || strings.Contains(b.String(), "\x1b") != coloured {
			t.Errorf("coloured %v: %q %v", coloured, b.String(), err)
		}
	}
}
