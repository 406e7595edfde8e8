package decode

import (
	"bytes"

	"github.com/klauspost/compress/zstd"
)

// mostWindow is what a frame may ask for before anything has come out of it; every
// decoder must take this much (RFC 8878).
const mostWindow = 8 << 20

func (r *reading) zstd() bool {
	if !bytes.HasPrefix(r.data, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return false
	}
	// One at a time: it starts no goroutines then.
	z, err := zstd.NewReader(bytes.NewReader(r.data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(mostWindow+mostOutput), zstd.WithDecoderMaxWindow(mostWindow))
	if err != nil {
		return false
	}
	defer z.Close()
	out, err := r.inflate(z)
	return r.inflated("zstd", out, err, func(inner []byte) ([]byte, error) {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return w.EncodeAll(inner, nil), w.Close()
	})
}
