package simulate

import (
	"fmt"
	"html"
	"strconv"
	"strings"
)

// SVG is the picture as one element, with presentation attributes only: it stands
// alone, and in a page whose content security policy forbids styles in markup, where
// a style sheet can change its colours by class.
func (r *Result) SVG() string {
	var s svg
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" class="storm" viewBox="0 0 %v %v" width="%v" height="%v" font-family="system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif" role="img" aria-label="%s">`+"\n",
		width, height, width, height, html.EscapeString(r.Text()))
	r.draw(&s)
	s.WriteString("</svg>\n")
	return s.String()
}

type svg struct{ strings.Builder }

func (s *svg) box(x, y, w, h float64, fill, class string) {
	fmt.Fprintf(s, `<rect x="%s" y="%s" width="%s" height="%s" fill="%s" class="%s"/>`+"\n", short(x), short(y), short(w), short(h), fill, class)
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
	fmt.Fprintf(s, `<text x="%s" y="%s" font-size="%s" fill="%s" class="%s"`, short(x), short(y), short(l.size), l.colour, l.class)
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
