package server

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"

	"github.com/redrive-mq/redrive/internal/audit"
)

// logged is a log of warnings and errors, but for RabbitMQ's, which is not there.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !strings.Contains(string(p), "RabbitMQ") {
		l.text.Write(p)
	}
	return len(p), nil
}

// A stop waits neither for who watches nor for who sends, and yet the audit log says
// what came of what was begun.
func TestAStopEndsWhatIsUnderWay(t *testing.T) {
	c := testConfig(t)
	c.Broker.URL = "amqp://127.0.0.1:1/"
	log := &logged{}
	s, err := New(c, Options{Version: "test", Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	live, err := client.Get("http://" + s.Addr() + "/api/v1/live")
	if err != nil {
		t.Fatal(err)
	}
	defer live.Body.Close()
	if _, err := live.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	reading := make(chan struct{}) // the service asks for the body
	body, never := io.Pipe()
	defer never.Close()
	trace := &httptrace.ClientTrace{Got100Continue: func() { close(reading) }}
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "POST", "http://"+s.Addr()+"/api/v1/import", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/jsonl")
	r.Header.Set("Expect", "100-continue")
	client.Transport.(*http.Transport).ExpectContinueTimeout = 0 // it sends when it is asked to
	var sent sync.WaitGroup
	sent.Go(func() {
		if resp, err := client.Do(r); err == nil {
			resp.Body.Close()
		}
	})
	<-reading
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	never.Close()
	sent.Wait()
	if log.text.Len() > 0 {
		t.Errorf("the log has %s", &log.text)
	}
	book, err := audit.Open(c.Audit(), audit.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	begun, ended := int64(0), int64(-1)
	err = book.Before(t.Context(), math.MaxInt64, func(e audit.Entry) (bool, error) {
		if e.Did == "import" && e.Of > 0 {
			ended = e.Of
		} else if e.Did == "import" {
			begun = e.N
		}
		return true, nil
	})
	if err != nil || begun == 0 || ended != begun {
		t.Errorf("the import was begun in line %d, and line %d says what came of it; %v", begun, ended, err)
	}
}
