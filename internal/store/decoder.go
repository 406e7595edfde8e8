package store

import "encoding/binary"

// Decoder reads what AppendTexts and encoding/binary have appended, until something does not
// fit: from then on each read gives zero, so that callers look at Torn once.
type Decoder struct {
	data []byte
	text string // "", or ends where data does, and is as long or longer: texts are parts of it
	torn bool
}

// Decode returns a Decoder of b.
func Decode(b []byte) *Decoder { return &Decoder{data: b} }

// More tells whether there is something left to read.
func (d *Decoder) More() bool { return len(d.data) > 0 }

// Torn tells whether something did not fit.
func (d *Decoder) Torn() bool { return d.torn }

// take reads n bytes; nil when there are fewer.
func (d *Decoder) take(n int) []byte {
	if n < 0 || n > len(d.data) {
		d.torn, d.data = true, nil
		return nil
	}
	b := d.data[:n]
	d.data = d.data[n:]
	return b
}

// Byte reads one.
func (d *Decoder) Byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

// Varint reads what binary.AppendVarint wrote.
func (d *Decoder) Varint() int64 {
	v, n := binary.Varint(d.data)
	d.skip(n)
	return v
}

// Uvarint reads what binary.AppendUvarint wrote.
func (d *Decoder) Uvarint() uint64 {
	v, n := binary.Uvarint(d.data)
	d.skip(n)
	return v
}

// skip passes over a number of n bytes; 0 or less: there is none.
func (d *Decoder) skip(n int) {
	if n <= 0 {
		n = -1
	}
	d.take(n)
}

// length is a count of things that each take at least one byte, so it can never
// be used to ask for more memory than the data has.
func (d *Decoder) length() int {
	v := d.Uvarint()
	if v > uint64(len(d.data)) {
		d.take(-1)
		return 0
	}
	return int(v)
}

// Text reads one that AppendTexts wrote.
func (d *Decoder) Text() string {
	b := d.take(d.length())
	if d.text == "" {
		return string(b)
	}
	end := len(d.text) - len(d.data)
	return d.text[end-len(b) : end]
}

// AppendTexts appends texts, each with its length in front.
func AppendTexts(b []byte, texts ...string) []byte {
	for _, s := range texts {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}

// ReadTexts reads what AppendTexts wrote, and returns what follows; ok is false when it is cut
// short or damaged.
func ReadTexts(b []byte, into ...*string) (rest []byte, ok bool) {
	d := Decode(b)
	for _, s := range into {
		*s = d.Text()
	}
	return d.data, !d.torn
}
