package simulate

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// sharp is how many pixels a unit of the picture has: two, for dense screens.
const sharp = 2

// PNG writes the picture.
func (r *Result) PNG(w io.Writer) error {
	p := &pixels{image: image.NewRGBA(image.Rect(0, 0, int(width*sharp), int(height*sharp))), faces: map[faceOf]font.Face{}}
	r.draw(p)
	if p.err != nil {
		return p.err
	}
	return png.Encode(w, p.image)
}

type pixels struct {
	image *image.RGBA
	faces map[faceOf]font.Face
	err   error
}

type faceOf struct {
	size float64
	bold bool
}

func (p *pixels) box(x, y, w, h float64, fill, _ string) {
	p.fill(paint(fill), []point{{x, y}, {x + w, y}, {x + w, y + h}, {x, y + h}})
}

// line fills the outlines of each dash and of a disc at each bend.
func (p *pixels) line(points []point, s stroke) {
	var shapes [][]point
	h := s.width / 2
	for _, d := range dashes(points, s.dash) {
		for i := range len(d) - 1 {
			a, b := d[i], d[i+1]
			length := math.Hypot(b.x-a.x, b.y-a.y)
			if length == 0 {
				continue
			}
			nx, ny := (b.y-a.y)/length*h, (a.x-b.x)/length*h
			shapes = append(shapes, []point{{a.x + nx, a.y + ny}, {b.x + nx, b.y + ny}, {b.x - nx, b.y - ny}, {a.x - nx, a.y - ny}})
			if i > 0 {
				var disc []point
				for k := range 8 {
					sin, cos := math.Sincos(float64(k) * math.Pi / 4)
					disc = append(disc, point{a.x + h*cos, a.y + h*sin})
				}
				shapes = append(shapes, disc)
			}
		}
	}
	p.fill(paint(s.colour), shapes...)
}

// fill paints shapes, each of them turning the same way: the rasterizer takes
// overlapping ones that turn in opposite ways for holes.
func (p *pixels) fill(c color.Color, shapes ...[]point) {
	low, high := point{width, height}, point{}
	for _, s := range shapes {
		for _, at := range s {
			low.x, low.y, high.x, high.y = min(low.x, at.x), min(low.y, at.y), max(high.x, at.x), max(high.y, at.y)
		}
	}
	where := image.Rect(int(low.x*sharp), int(low.y*sharp), int(high.x*sharp)+1, int(high.y*sharp)+1).Intersect(p.image.Rect)
	v := vector.NewRasterizer(where.Dx(), where.Dy())
	for _, s := range shapes {
		for i, at := range s {
			if x, y := float32(at.x*sharp)-float32(where.Min.X), float32(at.y*sharp)-float32(where.Min.Y); i == 0 {
				v.MoveTo(x, y)
			} else {
				v.LineTo(x, y)
			}
		}
		v.ClosePath()
	}
	v.Draw(p.image, where, image.NewUniform(c), image.Point{})
}

func (p *pixels) text(x, y float64, text string, l letters) {
	face := p.face(l)
	if face == nil {
		return
	}
	d := font.Drawer{Face: face, Src: image.NewUniform(paint(l.colour)), Dst: p.image}
	long := d.MeasureString(text)
	back := map[string]fixed.Int26_6{"middle": long / 2, "end": long}[l.align]
	at := fixed.P(int(x*sharp), int(y*sharp))
	if !l.turned {
		d.Dot = fixed.Point26_6{X: at.X - back, Y: at.Y}
		d.DrawString(text)
		return
	}
	// On paper of its own, which is then turned.
	m := face.Metrics()
	paper := image.NewRGBA(image.Rect(0, 0, long.Ceil(), (m.Ascent + m.Descent).Ceil()))
	d.Dst, d.Dot = paper, fixed.Point26_6{Y: m.Ascent}
	d.DrawString(text)
	turned := image.NewRGBA(image.Rect(0, 0, paper.Rect.Dy(), paper.Rect.Dx()))
	for py := range paper.Rect.Dy() {
		for px := range paper.Rect.Dx() {
			turned.SetRGBA(py, paper.Rect.Dx()-1-px, paper.RGBAAt(px, py))
		}
	}
	corner := image.Pt(at.X.Round()-m.Ascent.Round(), at.Y.Round()+back.Round()-turned.Rect.Dy())
	draw.Draw(p.image, turned.Rect.Add(corner), turned, image.Point{}, draw.Over)
}

func (p *pixels) face(l letters) font.Face {
	k := faceOf{l.size, l.bold}
	if p.faces[k] == nil && p.err == nil {
		data := goregular.TTF
		if l.bold {
			data = gobold.TTF
		}
		f, err := opentype.Parse(data)
		if err == nil {
			p.faces[k], err = opentype.NewFace(f, &opentype.FaceOptions{Size: l.size * sharp, DPI: 72})
		}
		p.err = err
	}
	return p.faces[k]
}

// dashes cuts a line; without a pattern it is one.
func dashes(points []point, pattern []float64) (all [][]point) {
	if len(pattern) == 0 {
		return [][]point{points}
	}
	now := []point{points[0]}
	k, left := 0, pattern[0]
	for i := range len(points) - 1 {
		a, b := points[i], points[i+1]
		length := math.Hypot(b.x-a.x, b.y-a.y)
		for at := 0.0; at < length; {
			step := min(left, length-at)
			at += step
			p := point{a.x + (b.x-a.x)*at/length, a.y + (b.y-a.y)*at/length}
			if k%2 == 0 {
				now = append(now, p)
			}
			if left -= step; left <= 1e-9 {
				if k%2 == 0 {
					all = append(all, now)
				}
				k = (k + 1) % (2 * len(pattern))
				left, now = pattern[k%len(pattern)], []point{p}
			}
		}
	}
	if k%2 == 0 {
		all = append(all, now)
	}
	return all
}

// paint reads "#rrggbb", as all colours here are.
func paint(s string) color.Color {
	var c color.RGBA
	_, _ = fmt.Sscanf(s, "#%02x%02x%02x", &c.R, &c.G, &c.B)
	c.A = 255
	return c
}
