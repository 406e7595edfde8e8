package simulate

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

const (
	rows   = 18 // of the plot in a terminal
	gutter = 9  // for the numbers beside it
)

// colours of the lines in a terminal, and letters where there are none.
var terminal = map[string]struct {
	colour int
	letter rune
}{"requeue": {31, 'r'}, "fixed": {35, 'f'}, "backoff": {34, 'b'}, "redrive": {32, '#'}}

// Plot draws the picture with characters, so many in a line: as dots in colours, or
// as letters without.
func (r *Result) Plot(w io.Writer, columns int, coloured bool) error {
	s := r.scale()
	wide := max(columns-gutter, 40)
	cells := make([][]cell, rows)
	for i := range cells {
		cells[i] = make([]cell, wide)
	}
	for _, way := range r.Ways {
		t := terminal[way.ID]
		last := -1
		for x := range 2 * wide { // a cell is two dots wide, and four high
			load := way.Load[x*len(way.Load)/(2*wide)]
			y := int(math.Round((1 - s.share(load)) * (4*rows - 1)))
			if last < 0 {
				last = y
			}
			for d := min(last, y); d <= max(last, y); d++ {
				cells[d/4][x/2].dot(x%2, d%4, t.colour, t.letter)
			}
			last = y
		}
	}
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%s\n%s\n\ncalls per second (log scale)\n", r.title(), r.subtitle())
	marks := map[int]string{}
	for e := s.low; e <= s.high; e++ {
		marks[int(math.Round((1-s.share(math.Pow(10, e)))*(4*rows-1)))/4] = number(math.Pow(10, e))
	}
	for i, row := range cells {
		fmt.Fprintf(b, "%*s │", gutter-2, marks[i])
		b.WriteString(strings.TrimRight(textOf(row, coloured), " "))
		b.WriteByte('\n')
	}
	r.axis(b, wide)
	return b.Flush()
}

// axis is the one of time; the outage is a thicker part of it.
func (r *Result) axis(b io.Writer, wide int) {
	o := r.Options
	x := func(at time.Duration) int {
		return min(int(float64(wide)*float64(o.Before+at)/float64(o.Duration)), wide-1)
	}
	line := []rune(strings.Repeat("─", wide))
	for i := x(0); i <= x(o.Outage); i++ {
		line[i] = '━'
	}
	labels := []rune(strings.Repeat(" ", wide))
	step, free := nice(o.Duration), 0
	for at := time.Duration(0); o.Before+at <= o.Duration; at += step {
		if text := []rune(moment(at)); x(at) >= free && x(at)+len(text) <= wide {
			free = x(at) + copy(labels[x(at):], text) + 2
		}
	}
	pad := strings.Repeat(" ", gutter)
	fmt.Fprintf(b, "%s└%s\n%s%s\n", pad[1:], string(line), pad, strings.TrimRight(string(labels), " "))
	fmt.Fprintf(b, "%stime since the outage began; ━ the upstream is down\n", pad)
}

// Key says which line is whose.
func (w Way) Key(coloured bool) string {
	t := terminal[w.ID]
	if coloured {
		return fmt.Sprintf("\x1b[%dm⣿\x1b[0m", t.colour)
	}
	return string(t.letter)
}

type cell struct {
	dots   rune
	colour int
	letter rune
}

// dot sets one of a cell's dots, as Unicode numbers those of braille. Whoever comes
// last gives it its colour.
func (c *cell) dot(x, y, colour int, letter rune) {
	c.dots |= [2][4]rune{{1, 2, 4, 64}, {8, 16, 32, 128}}[x][y]
	c.colour, c.letter = colour, letter
}

func textOf(row []cell, coloured bool) string {
	var b strings.Builder
	if last := slices.IndexFunc(row, func(c cell) bool { return c.dots != 0 }); last < 0 {
		return ""
	}
	now := 0
	for _, c := range row {
		switch {
		case c.dots == 0:
			b.WriteByte(' ')
		case !coloured:
			b.WriteRune(c.letter)
		default:
			if c.colour != now {
				fmt.Fprintf(&b, "\x1b[%dm", c.colour)
				now = c.colour
			}
			b.WriteRune(0x2800 + c.dots)
		}
	}
	if now != 0 {
		b.WriteString("\x1b[0m")
	}
	return b.String()
}
