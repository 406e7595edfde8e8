package simulate

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/policy"
)

type point struct{ x, y float64 }

type stroke struct {
	colour, class string // "#rrggbb", and what a page's style sheet changes it by
	width         float64
	dash          []float64
}

type letters struct {
	size   float64
	bold   bool
	colour string
	class  string
	align  string // start, middle or end
	turned bool   // to be read from below
}

// The picture's size, and where in it the plot is.
const (
	width, height                     = 960.0, 560.0
	plotLeft, plotTop, plotW, plotEnd = 78.0, 78.0, 862.0, 390.0
	ink, dim, grid                    = "#1b2127", "#57626d", "#dde1e5"
)

// strokes differ in their dashes, too.
var strokes = map[string]stroke{
	"requeue": {colour: "#b3401a", class: "storm-requeue", width: 2, dash: []float64{2, 3}},
	"fixed":   {colour: "#7a4aa0", class: "storm-fixed", width: 2, dash: []float64{12, 4, 2, 4}},
	"backoff": {colour: "#0b5d8f", class: "storm-backoff", width: 2, dash: []float64{8, 4}},
	"redrive": {colour: "#12875f", class: "storm-redrive", width: 3.5},
}

// scale is where in the plot a value is.
type scale struct {
	r         *Result
	low, high float64 // powers of ten
}

func (r *Result) scale() scale {
	least, most := r.Options.Rate, r.Options.Capacity
	for _, w := range r.Ways {
		for _, v := range w.Load {
			most = max(most, v)
			if v > 0 {
				least = min(least, v)
			}
		}
	}
	low := math.Floor(math.Log10(0.8 * max(least, r.Options.Rate/20)))
	return scale{r, low, max(math.Ceil(math.Log10(most*1.05)), low+1)}
}

func (s scale) x(at time.Duration) float64 {
	return plotLeft + plotW*float64(at)/float64(s.r.Options.Duration)
}

func (s scale) y(perSecond float64) float64 {
	share := 0.0 // of the height
	if perSecond > 0 {
		share = min(max((math.Log10(perSecond)-s.low)/(s.high-s.low), 0), 1)
	}
	return plotEnd - (plotEnd-plotTop)*share
}

func (r *Result) draw(c *svg) {
	o, s := r.Options, r.scale()
	c.box(0, 0, width, height, "#ffffff", "storm-paper")
	c.text(20, 30, r.title(), letters{size: 19, bold: true, colour: ink, class: "storm-ink"})
	c.text(20, 53, r.subtitle(), letters{size: 13, colour: dim, class: "storm-dim"})
	r.drawOutage(c, s)
	r.drawAxes(c, s)
	// In the outage, where no line is near.
	small := letters{size: 12, colour: dim, class: "storm-dim", align: "middle"}
	middle, y := s.x(o.Before+o.Outage/2), s.y(o.Capacity)
	c.line([]point{{plotLeft, y}, {plotLeft + plotW, y}},
		stroke{colour: dim, class: "storm-capacity", width: 1, dash: []float64{1, 3}})
	c.text(middle, y-6, "what the upstream can serve, "+perSecond(o.Capacity), small)
	c.text(middle, s.y(o.Rate)+18, "first deliveries, "+perSecond(o.Rate), small)
	for _, w := range r.Ways {
		points := make([]point, len(w.Load))
		for i, v := range w.Load {
			points[i] = point{s.x(min(time.Duration(i)*r.Bin+r.Bin/2, o.Duration)), s.y(v)}
		}
		c.line(points, strokes[w.ID])
	}
	r.drawTable(c)
}

func (r *Result) drawOutage(c *svg, s scale) {
	o := r.Options
	from, back, well := s.x(o.Before), s.x(o.Before+o.Outage), s.x(min(o.Before+o.Outage+o.Limp, o.Duration))
	c.box(from, plotTop, back-from, plotEnd-plotTop, "#f9dfe3", "storm-down")
	label := letters{size: 12, bold: true, colour: "#8c1c34", class: "storm-down-text", align: "middle"}
	c.text((from+back)/2, plotTop-7, "upstream down", label)
	if well > back {
		c.box(back, plotTop, well-back, plotEnd-plotTop, "#fdf1d6", "storm-limp")
		label.colour, label.class, label.align = "#7a5200", "storm-limp-text", "start"
		c.text(back+2, plotTop-7, "limps", label)
	}
}

func (r *Result) drawAxes(c *svg, s scale) {
	o := r.Options
	label := letters{size: 12, colour: dim, class: "storm-dim", align: "end"}
	thin := stroke{colour: grid, class: "storm-grid", width: 1}
	for e := s.low; e <= s.high; e++ {
		y := s.y(math.Pow(10, e))
		c.line([]point{{plotLeft, y}, {plotLeft + plotW, y}}, thin)
		c.text(plotLeft-8, y+4, number(math.Pow(10, e)), label)
	}
	label.align = "middle"
	step := nice(o.Duration)
	for at := -(o.Before / step) * step; o.Before+at <= o.Duration; at += step {
		x := s.x(o.Before + at)
		c.line([]point{{x, plotEnd}, {x, plotEnd + 5}}, stroke{colour: dim, class: "storm-capacity", width: 1})
		c.text(x, plotEnd+19, moment(at), label)
	}
	c.line([]point{{plotLeft, plotEnd}, {plotLeft + plotW, plotEnd}},
		stroke{colour: dim, class: "storm-capacity", width: 1})
	label.size = 13
	c.text(plotLeft+plotW/2, plotEnd+38, "time since the outage began", label)
	label.turned = true
	c.text(20, (plotTop+plotEnd)/2, "calls per second (log scale)", label)
}

// drawTable is the legend, and what came out.
func (r *Result) drawTable(c *svg) {
	head := letters{size: 12, colour: dim, class: "storm-dim", align: "end"}
	columns := []float64{460, 560, 720, 840, 940}
	y := plotEnd + 66
	for i, h := range []string{"retries while down", "peak", "arrivals served after", "drained after", "parked"} {
		c.text(columns[i], y, h, head)
	}
	for _, w := range r.Ways {
		y += 24
		st := strokes[w.ID]
		c.line([]point{{24, y - 4}, {70, y - 4}}, st)
		cell := letters{size: 14, colour: ink, class: "storm-ink", bold: w.ID == "redrive", align: "start"}
		c.text(plotLeft, y, w.Title, cell)
		cell.align = "end"
		for i, v := range []string{number(float64(w.Retries)), perSecond(w.Peak), r.after(w.Recovered),
			r.after(w.Drained), number(float64(w.Parked))} {
			c.text(columns[i], y, v, cell)
		}
	}
}

func (r *Result) title() string {
	return fmt.Sprintf("Load on an upstream that is down for %s, at %s messages a second",
		policy.FormatDuration(r.Options.Outage), number(r.Options.Rate))
}

func (r *Result) subtitle() string {
	o := r.Options
	parts := []string{"policy " + strings.TrimPrefix(o.Policy.Name, "policy "), o.Policy.Backoff.String(),
		fmt.Sprintf("%d attempts", o.Policy.Attempts)}
	if o.Rules.Breaker != nil {
		parts = append(parts, "breaker on")
	}
	if o.Rules.Rate > 0 {
		parts = append(parts, "retries at "+perSecond(o.Rules.Rate))
	}
	if o.Rules.InFlight > 0 {
		parts = append(parts, fmt.Sprintf("%d in flight", o.Rules.InFlight))
	}
	return strings.Join(parts, " · ")
}

// Heading says what was simulated.
func (r *Result) Heading() string { return r.title() + "\n" + r.subtitle() }

// Text says what the picture shows.
func (r *Result) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, and can serve %s.", r.title(), perSecond(r.Options.Capacity))
	for _, w := range r.Ways {
		fmt.Fprintf(&b, " With %s: %s retries reach it while it is down, at most %s calls a second; new messages are "+
			"served %s, and the backlog is gone %s",
			strings.ToLower(w.Title[:1])+w.Title[1:], number(float64(w.Retries)), number(w.Peak),
			afterWords(w.Recovered), afterWords(w.Drained))
		if w.Parked > 0 {
			fmt.Fprintf(&b, ", %s messages having been parked", number(float64(w.Parked)))
		}
		b.WriteByte('.')
	}
	return b.String()
}

func afterWords(d *Seconds) string {
	if d == nil {
		return "not within the time shown"
	}
	return moment(time.Duration(*d)) + " after the outage"
}

// after says when something came, from the end of the outage on. What did not come in the
// time that was simulated may come later.
func (r *Result) after(d *Seconds) string {
	if d == nil {
		return "not in " + moment(r.Options.Duration-r.Options.Before-r.Options.Outage)
	}
	return moment(time.Duration(*d))
}

// moment is a time from the beginning of the outage.
func moment(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d >= time.Hour:
		return policy.FormatDuration(d.Round(time.Minute))
	}
	return policy.FormatDuration(d.Round(time.Second))
}

// nice returns the distance of marks on the axis of time.
func nice(whole time.Duration) time.Duration {
	for _, d := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour,
		2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour} {
		if whole/d <= 12 {
			return d
		}
	}
	return max(whole/10, 24*time.Hour).Round(24 * time.Hour)
}

func perSecond(v float64) string { return number(v) + "/s" }

// number separates thousands; a number below ten has two significant digits.
func number(v float64) string {
	if v < 10 && v != math.Trunc(v) {
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
	return hint.Thousands(strconv.FormatFloat(math.Round(v), 'f', 0, 64))
}

// SVG returns the picture as one element with presentation attributes only: it stands alone, and in a page whose
// content security policy forbids styles in markup. A style sheet can change its colours by class.
func (r *Result) SVG() string {
	var s svg
	fmt.Fprintf(&s,
		`<svg xmlns="http://www.w3.org/2000/svg" class="storm" viewBox="0 0 %v %v" width="%v" height="%v" `+
			`font-family="system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', `+
			`sans-serif" role="img" aria-label="%s">`+"\n",
		width, height, width, height, html.EscapeString(r.Text()))
	r.draw(&s)
	s.WriteString("</svg>\n")
	return s.String()
}

type svg struct{ strings.Builder }

func (s *svg) box(x, y, w, h float64, fill, class string) {
	fmt.Fprintf(s, `<rect x="%s" y="%s" width="%s" height="%s" fill="%s" class="%s"/>`+"\n", short(x), short(y),
		short(w), short(h), fill, class)
}

func (s *svg) line(points []point, st stroke) {
	s.WriteString(`<path d="`)
	for i, p := range points {
		fmt.Fprintf(s, "%c%s,%s", "ML"[min(i, 1)], short(p.x), short(p.y))
	}
	fmt.Fprintf(s, `" fill="none" stroke="%s" stroke-width="%s" stroke-linejoin="round"`, st.colour, short(st.width))
	if len(st.dash) > 0 {
		s.WriteString(` stroke-dasharray="`)
		for i, d := range st.dash {
			s.WriteString(" "[:min(i, 1)] + short(d))
		}
		s.WriteByte('"')
	}
	fmt.Fprintf(s, ` class="%s"/>`+"\n", st.class)
}

func (s *svg) text(x, y float64, text string, l letters) {
	fmt.Fprintf(s, `<text x="%s" y="%s" font-size="%s" fill="%s" class="%s"`, short(x), short(y), short(l.size),
		l.colour, l.class)
	if l.bold {
		s.WriteString(` font-weight="600"`)
	}
	if l.align == "middle" || l.align == "end" {
		fmt.Fprintf(s, ` text-anchor="%s"`, l.align)
	}
	if l.turned {
		fmt.Fprintf(s, ` transform="rotate(-90 %s %s)"`, short(x), short(y))
	}
	fmt.Fprintf(s, ">%s</text>\n", html.EscapeString(text))
}

// short is a coordinate to a tenth.
func short(v float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}
