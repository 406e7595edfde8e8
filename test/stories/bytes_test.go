package stories_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// notUTF8 is a name that RabbitMQ takes as a routing key or a header, and that no queue
// can have.
const notUTF8 = "orders.\xbe\xff"

// A report, a parked message and a record of an earlier version that name a queue in
// bytes that are not UTF-8 are parked with those bytes shown. They end neither the
// process nor a connection, and metrics can be read.
func TestANameThatIsNotUTF8IsParkedWithItsBytes(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		data := t.TempDir()
		seed(t, data, &store.Record{ID: uuid.New(), Queue: notUTF8, State: store.Waiting, Due: time.Now(), FailedAt: time.Now(), FirstFailed: time.Now(), Failures: 1})
		s := startAt(t, v, soon, data).ready(t)
		ch := v.Channel()
		publish(t, ch, wire.ExchangeFailures, notUTF8, amqp.Publishing{Body: []byte("reported")})
		publish(t, ch, wire.ExchangeParked, "", amqp.Publishing{Body: []byte("collected"), Headers: amqp.Table{
			wire.HeaderQueue: notUTF8, wire.HeaderReason: notUTF8, wire.HeaderParkReason: "why " + notUTF8}})
		var parked []inspect.Message
		brokertest.Eventually(t, "all three are parked", func() bool {
			parked = s.Parked(t)
			return len(parked) == 3
		})
		for _, m := range parked {
			if !strings.Contains(m.ParkedFor, `"orders.\xbe\xff"`) {
				t.Errorf("parked because %q", m.ParkedFor)
			}
		}

		deadLettered(v, "work", "quorum")
		publish(t, ch, "", "work", amqp.Publishing{Body: []byte("after")})
		work := consume(t, v, "work")
		reject(t, work.next())
		if d := work.next(); string(d.Body) != "after" {
			t.Errorf("%q came back", d.Body)
		}
		for _, problem := range s.Problems() {
			t.Errorf("problem: %s", problem)
		}
		resp, err := http.Get("http://" + s.Addr() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `redrive_parked{queue="orders.\\xbe\\xff"} 1`) {
			t.Errorf("/metrics: %s, %v\n%s", resp.Status, err, body)
		}
		// An editor's file names such a queue.
		line := `{"redrive":1,"id":"11111111-1111-1111-1111-111111111111","queue":{"base64":"b3JkZXJzLr7/"},"state":"parked","due":"2026-01-02T03:04:05Z","attempt":1,"message":{"exchange":"","routing_key":"k"}}`
		if _, err := s.Client.Import(context.Background(), strings.NewReader(line), false); err == nil || !strings.Contains(err.Error(), `"orders.\xbe\xff" is not a work queue`) {
			t.Errorf("importing a file with such a queue: %v", err)
		}
		if err := s.Stop(); err != nil {
			t.Errorf("it ended with %v", err)
		}
		kinds := []retry.Kind{}
		for len(s.Events) > 0 {
			kinds = append(kinds, (<-s.Events).Kind)
		}
		if n := len(slices.DeleteFunc(kinds, func(k retry.Kind) bool { return k != retry.Parked })); n != 3 {
			t.Errorf("%d were parked: some were taken more than once", n)
		}
	})
}

// seed puts records into a store that the service will open.
func seed(t *testing.T, data string, records ...*store.Record) {
	t.Helper()
	st, err := diskstore.Open(data, diskstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Add(context.Background(), records); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}
