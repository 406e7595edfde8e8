package simulate_test

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/simulate"
	"github.com/redrive-mq/redrive/testenv/expect"
)

var update = flag.Bool("update", false, "write docs/images/storm.svg")

// The picture in the README is what the command beside it draws, and the numbers there
// are its.
func TestThePictureOfTheReadme(t *testing.T) {
	const picture = "../../docs/images/storm.svg"
	c, err := config.Load("../../docs/explanation/storm.yaml", func(string) string { return "" })
	expect.NoError(t, err)
	r, err := simulate.Run(t.Context(), simulate.Options{Policy: c.Policies[0], Rules: c.Throttle["orders"], Rate: 200, Outage: time.Hour, Seed: 1})
	expect.NoError(t, err)
	svg := r.SVG()
	if *update {
		expect.NoError(t, os.WriteFile(picture, []byte(svg), 0o644))
	}
	if is, err := os.ReadFile(picture); err != nil || string(is) != svg {
		t.Errorf("%s differs from what is drawn (%v): go test ./internal/simulate -run TestThePictureOfTheReadme -update writes it", picture, err)
	}
	readme, err := os.ReadFile("../../README.md")
	expect.NoError(t, err)
	text := strings.Join(strings.Fields(string(readme)), " ")
	for _, row := range r.Table()[1:] {
		retries := " " + row[1]
		if n, err := strconv.ParseFloat(strings.ReplaceAll(row[1], ",", ""), 64); err == nil && n >= 1e6 {
			retries = fmt.Sprintf(" %.0f million", n/1e6)
		}
		if !strings.Contains(text, retries) {
			t.Errorf("the README does not have%s retries (%s)", retries, row[0])
		}
	}
	for _, no := range []string{"style", "<script", "<style", "onload", "href"} {
		if strings.Contains(svg, no) {
			t.Errorf("the picture has %q, which the page's policy forbids", no)
		}
	}
}
