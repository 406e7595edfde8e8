package stories_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// What somebody deletes of Redrive's own is declared again within seconds, with its
// bindings, and counted; what fails afterwards comes back.
func TestDeletedExchangesAndQueuesAreDeclaredAgain(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := start(t, v, soon).ready(t)
		deadLettered(v, "work", "quorum")
		work := consume(t, v, "work")
		comesBack := func() {
			t.Helper()
			publish(t, v.Channel(), "", "work", amqp.Publishing{})
			reject(t, work.next())
			if d := work.next(); d.Headers[wire.HeaderAttempt] != int64(1) {
				t.Errorf("it came back with %v", d.Headers)
			} else if err := d.Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		comesBack()
		for _, deleted := range []string{"exchange " + wire.ExchangeDeadLetters, "exchange " + wire.ExchangeFailures, "exchange " + wire.ExchangeQuarantine,
			"queue " + wire.QueueQuarantine, "queue " + wire.QueueIntake, "exchange " + wire.ExchangeParked, "queue " + wire.QueueParked} {
			what, name, _ := strings.Cut(deleted, " ")
			v.Must(http.MethodDelete, what+"s/"+v.Name+"/"+name, nil)
			brokertest.Eventually(t, deleted+" is declared again, and counted", func() bool {
				return strings.Contains(metricsOf(t, s), `redrive_declared_again_total{name="`+deleted+`"} 1`)
			})
		}
		s.ready(t)
		comesBack()
		bindings := "bindings/" + v.Name + "/e/" + wire.ExchangeDeadLetters + "/q/" + wire.QueueIntake
		v.Must(http.MethodDelete, bindings+"/~", nil)
		brokertest.Eventually(t, "the binding is there again", func() bool {
			var all []management.Binding
			return v.API().Call(context.Background(), http.MethodGet, bindings, nil, &all) == nil && len(all) == 1
		})
		comesBack()
	})
}

func metricsOf(t *testing.T, s *service) string {
	t.Helper()
	resp, err := http.Get("http://" + s.Addr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A policy or operator policy for every queue can beat the intake's own delivery limit:
// the one in force is judged.
func TestASmallDeliveryLimitOfAPolicyIsAProblem(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := run(t, servertest.Config(t, v, soon)).ready(t)
		told := func(limit string) func() bool {
			return func() bool {
				return strings.Contains(strings.Join(s.Problems(), "\n"), "delivery limit: of redrive.intake is "+limit)
			}
		}
		v.Policy("everything", ".*", 0, map[string]any{"delivery-limit": 7})
		brokertest.Eventually(t, "the policy's limit is told", told("7, by the policies everything"))
		v.Must(http.MethodPut, "operator-policies/"+v.Name+"/operators", map[string]any{"pattern": ".*", "apply-to": "queues", "definition": map[string]any{"delivery-limit": 3}})
		brokertest.Eventually(t, "the operator policy's limit is told", told("3, by the policies everything, operators"))
		v.Must(http.MethodDelete, "operator-policies/"+v.Name+"/operators", nil)
		v.Must(http.MethodDelete, "policies/"+v.Name+"/everything", nil)
		s.ready(t)
	})
}

// Two services with stores of their own on one virtual host take a part each: both say so,
// and no longer once one has ended.
func TestTwoServicesOnOneVirtualHostAreReported(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		one, other := start(t, v, soon), start(t, v, soon)
		for _, s := range []*service{one, other} {
			brokertest.Eventually(t, "it says that there is another", func() bool {
				return strings.Contains(strings.Join(s.Problems(), "\n"), "another service: redrive.intake has 2 consumers")
			})
		}
		if err := other.Stop(); err != nil {
			t.Fatal(err)
		}
		one.ready(t)
	})
}
