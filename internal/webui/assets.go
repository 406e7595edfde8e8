package webui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed assets
var assetFiles embed.FS

// file is one asset: as it is, compressed, and the version that is in its URL, so
// that a browser may keep it for ever.
type file struct {
	plain, small  []byte
	version, kind string
}

var loadAssets = sync.OnceValue(func() map[string]file {
	all := map[string]file{}
	entries, _ := assetFiles.ReadDir("assets")
	for _, e := range entries {
		data, err := assetFiles.ReadFile("assets/" + e.Name())
		if err != nil {
			panic(err) // it is embedded
		}
		sum := sha256.Sum256(data)
		all[e.Name()] = file{plain: data, small: compressed(data), version: hex.EncodeToString(sum[:6]), kind: mime.TypeByExtension(path.Ext(e.Name()))}
	}
	return all
})

// assetURL is where an asset is served.
func assetURL(name string) string {
	f, ok := loadAssets()[name]
	if !ok {
		panic("no asset is named " + name)
	}
	return "/assets/" + f.version + "/" + name
}

func asset(w http.ResponseWriter, r *http.Request) {
	f, ok := loadAssets()[r.PathValue("name")]
	if !ok || f.version != r.PathValue("version") {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	data := f.plain
	if takesGzip(r) {
		h.Set("Content-Encoding", "gzip")
		data = f.small
	}
	_, _ = w.Write(data)
}

func takesGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

func compressed(data []byte) []byte {
	var b bytes.Buffer
	compressInto(&b, gzip.NewWriter(nil), data)
	return b.Bytes()
}

// quick compressors are for pages, which are made again each time: they take a third
// of the time for a tenth more bytes, and each is large enough to be used again.
var quick = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails only for levels there are not
	return z
}}

func compressedQuickly(data []byte) []byte {
	z := quick.Get().(*gzip.Writer)
	defer quick.Put(z)
	var b bytes.Buffer
	compressInto(&b, z, data)
	return b.Bytes()
}

func compressInto(b *bytes.Buffer, z *gzip.Writer, data []byte) {
	z.Reset(b)
	_, _ = z.Write(data)
	_ = z.Close()
}
