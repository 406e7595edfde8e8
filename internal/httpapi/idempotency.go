package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	keyHeader = "Idempotency-Key"
	mostKey   = 255
	// remembered is how long an answer is kept.
	remembered = 24 * time.Hour
	// mostAnswer is the largest answer that is kept.
	mostAnswer = 4 << 20
	// answers is where they are in the store's side table.
	answers = "idempotency/"
)

// Entries is where answers are kept: a store's side table.
type Entries interface {
	Entry(ctx context.Context, name string) ([]byte, error)
	Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (more bool, err error)) error
	PutEntries(ctx context.Context, entries []store.Entry) error
}

// idempotency answers a request that is sent again with the same key as the first time. The key
// is in the store before anything is done, so that what a crash interrupted is never done a second
// time.
type idempotency struct {
	*API
	mu      sync.Mutex
	running map[string]bool
	swept   time.Time
}

// answer is what was answered; without Done it is not known whether anything was done.
type answer struct {
	At      time.Time
	Done    bool
	Request []byte // the hash of all of it
	Status  int
	Type    string
	Body    []byte
}

// middleware is that of routes that change something.
func (g *idempotency) middleware(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	key, c := r.Header.Get(keyHeader), auth.From(r.Context())
	// Nothing is kept for a caller without permission.
	if key == "" || c.May(auth.Operator, "") != nil {
		next(ctx)
		return
	}
	if len(key) > mostKey {
		writeProblem(w, problem(http.StatusUnprocessableEntity, "invalid", fmt.Sprintf("the %s is longer than %d bytes", keyHeader, mostKey)))
		return
	}
	sum := sha256.Sum256([]byte(c.How + "\x00" + c.Name + "\x00" + key))
	name := answers + hex.EncodeToString(sum[:])
	if !g.begin(name) {
		writeProblem(w, problemOf(ErrInProgress))
		return
	}
	defer g.end(name)
	most := ctx.Operation().MaxBodyBytes
	if most <= 0 {
		most = mostImport
	}
	sent := &hashing{Reader: http.MaxBytesReader(w, r.Body, most), Closer: r.Body, sum: sha256.New()}
	sent.sum.Write([]byte(r.Method + " " + r.URL.RequestURI() + "\x00"))
	was, err := g.read(r.Context(), name)
	if was == nil && err == nil {
		g.sweep(r.Context())
		err = g.write(r.Context(), name, &answer{At: g.Now()})
	}
	switch {
	case err != nil:
		writeProblem(w, g.failed(*ctx.Operation(), err).(*Problem))
	case was != nil && !was.Done:
		writeProblem(w, problemOf(ErrInterrupted))
	case was != nil:
		was.repeat(w, sent)
	default:
		r.Body = sent
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		next(humago.NewContext(ctx.Operation(), r, rec))
		g.keep(r, name, sent, rec)
		rec.send()
	}
}

// repeat answers as the first time, if all that is sent is the same.
func (was *answer) repeat(w http.ResponseWriter, sent *hashing) {
	if _, err := io.Copy(io.Discard, sent); err != nil || !bytes.Equal(sent.sum.Sum(nil), was.Request) {
		writeProblem(w, problemOf(ErrKeyReused))
		return
	}
	if was.Type != "" {
		w.Header().Set("Content-Type", was.Type)
	}
	w.Header().Set("Idempotency-Replayed", "true")
	w.WriteHeader(was.Status)
	_, _ = w.Write(was.Body)
}

// keep writes what a request was answered, also when the client has gone meanwhile.
func (g *idempotency) keep(r *http.Request, name string, sent *hashing, rec *recorder) {
	var err error
	ctx := context.WithoutCancel(r.Context())
	switch {
	case rec.status < 300 && rec.body.Len() <= mostAnswer:
		_, _ = io.Copy(io.Discard, sent) // the hash is of all that was sent
		err = g.write(ctx, name, &answer{At: g.Now(), Done: true, Request: sent.sum.Sum(nil), Status: rec.status, Type: rec.Header().Get("Content-Type"), Body: rec.body.Bytes()})
	case rec.status >= 300 && rec.status < 500 && r.Context().Err() == nil, rec.nothingDone():
		err = g.Entries.PutEntries(ctx, []store.Entry{{Name: name}}) // refused: nothing was done, and the key is free
	} // otherwise it stays begun: the result is unknown, or too large to be kept
	if err != nil {
		g.Log.Error("an answer is not remembered: the same request would be refused", "error", err)
	}
}

func (g *idempotency) begin(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running[name] {
		return false
	}
	g.running[name] = true
	return true
}

func (g *idempotency) end(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.running, name)
}

// read returns the answer to a key, nil when there is none.
func (g *idempotency) read(ctx context.Context, name string) (*answer, error) {
	data, err := g.Entries.Entry(ctx, name)
	if err != nil || data == nil {
		return nil, err
	}
	was := &answer{}
	if json.Unmarshal(data, was) != nil || g.Now().Sub(was.At) >= remembered {
		return nil, nil
	}
	return was, nil
}

func (g *idempotency) write(ctx context.Context, name string, a *answer) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return g.Entries.PutEntries(ctx, []store.Entry{{Name: name, Value: data}})
}

// sweep deletes old answers, once an hour.
func (g *idempotency) sweep(ctx context.Context) {
	g.mu.Lock()
	due := g.Now().Sub(g.swept) >= time.Hour
	if due {
		g.swept = g.Now()
	}
	g.mu.Unlock()
	if !due {
		return
	}
	var old []store.Entry
	err := g.Entries.Entries(ctx, answers, "", func(e store.Entry) (bool, error) {
		var a answer
		if json.Unmarshal(e.Value, &a) != nil || g.Now().Sub(a.At) >= remembered {
			old = append(old, store.Entry{Name: e.Name})
		}
		return true, nil
	})
	for part := range slices.Chunk(old, 1000) {
		if err == nil {
			err = g.Entries.PutEntries(ctx, part)
		}
	}
	if err != nil {
		g.Log.Warn("answers of more than a day ago are not forgotten yet", "error", err)
	}
}

// hashing reads a body and knows the hash of what was read.
type hashing struct {
	io.Reader
	io.Closer
	sum hash.Hash
}

func (h *hashing) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	h.sum.Write(p[:n])
	return n, err
}

// recorder keeps an answer until it is remembered.
type recorder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// nothingDone tells whether the answer is an error which means that nothing was done.
func (r *recorder) nothingDone() bool {
	var p Problem
	return r.status >= 500 && json.Unmarshal(r.body.Bytes(), &p) == nil && (p.Code == "no_audit" || p.Code == "full")
}

func (r *recorder) send() {
	r.ResponseWriter.WriteHeader(r.status)
	_, _ = r.ResponseWriter.Write(r.body.Bytes())
}
