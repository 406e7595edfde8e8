package webui

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/policy"
)

// svgPath is numbers as an SVG path in a box.
func svgPath(numbers []int64, most int64, width, height float64) string {
	var b strings.Builder
	step := width / float64(max(len(numbers)-1, 1))
	for i, n := range numbers {
		fmt.Fprintf(&b, "%c%.1f,%.1f", "ML"[min(i, 1)], float64(i)*step, height-float64(n)/float64(max(most, 1))*(height-2)-1)
	}
	return b.String()
}

// sparkline is the failures of the last hours, as bars: one SVG path, since a template
// takes long for each of its steps, and there are hundreds of these on a page.
type sparkline struct {
	Bars  string
	Width int
	Text  string // for those who cannot see it
}

const sparkHeight = 20

func spark(hours []int64) sparkline {
	s := sparkline{Width: 4 * len(hours)}
	var most, sum int64
	for _, n := range hours {
		most, sum = max(most, n), sum+n
	}
	var b []byte
	for i, n := range hours {
		h := 1.0 // an empty hour is a line, not a gap
		if n > 0 {
			h = 2 + float64(sparkHeight-2)*float64(n)/float64(most)
		}
		b = append(strconv.AppendInt(append(b, 'M'), int64(4*i), 10), ",20h3v-"...)
		b = append(strconv.AppendFloat(b, h, 'f', 1, 64), "h-3z"...)
	}
	s.Bars = string(b)
	s.Text = fmt.Sprintf("%s in the last %d hours, at most %s in one", plural(sum, "failure", "failures"), len(hours), count(most))
	return s
}

// policyView is a policy with its waits as bars.
type policyView struct {
	inspect.PolicyInForce
	Bars       []waitBar
	Total      string
	Simulation template.HTML
}

type waitBar struct {
	inspect.Wait
	Least, Most float64 // of the longest wait, in percent
}

func policyBars(p inspect.PolicyInForce) policyView {
	v := policyView{PolicyInForce: p}
	var longest, total time.Duration
	for _, w := range p.Waits {
		most := duration(w.Most)
		longest, total = max(longest, most), total+(duration(w.Least)+most)/2
	}
	for _, w := range p.Waits {
		share := func(s string) float64 { return 100 * float64(duration(s)) / float64(max(longest, 1)) }
		v.Bars = append(v.Bars, waitBar{w, share(w.Least), max(share(w.Most), 0.5)})
	}
	v.Total = policy.FormatDuration(total.Round(time.Second))
	return v
}

// duration reads a duration as policies write it, such as "1m 4s"; 0 for what is none.
func duration(s string) time.Duration {
	d, _ := query.ParseDuration(strings.ReplaceAll(s, " ", ""))
	return d
}
