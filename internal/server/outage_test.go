package server_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/server"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// Who starts the service where RabbitMQ is not sees one line about it, with the remedy, however many
// connections there are.
func TestAStartWithoutRabbitMQIsOneLineOfTheLog(t *testing.T) {
	t.Parallel()
	c, err := config.Parse("test.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Broker.URL, c.Store.Disk, c.Listen = "amqp://guest:guest@127.0.0.1:1/", t.TempDir(), "127.0.0.1:0"
	log := &brokertest.Output{}
	s, err := server.New(c, server.Options{Version: "test", Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: hint.Attr}))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	brokertest.Eventually(t, "all connections have failed", func() bool {
		return strings.Count(strings.Join(s.Problems(), "\n"), "connection refused") >= 2
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), `hint="start RabbitMQ there, or correct host and port of the URL"`) {
		t.Errorf("%d warnings:\n%s", n, log)
	}
}
