package web

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
	z := gzip.NewWriter(&b)
	_, _ = z.Write(data)
	_ = z.Close()
	return b.Bytes()
}
