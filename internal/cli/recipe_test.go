package cli_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// message is what a publisher sends.
func message(body string) amqp.Publishing {
	return amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)}
}

// returned waits for a message that is due again, and says with which key it came.
func returned(t *testing.T, work *brokertest.Consumer, body string, began time.Time, wait time.Duration) amqp.Delivery {
	t.Helper()
	d := work.Next()
	if took := time.Since(began); string(d.Body) != body || took < wait {
		t.Fatalf("%q came after %s, want %q after %s", d.Body, took, body, wait)
	}
	return d
}

func ack(t *testing.T, d amqp.Delivery) {
	t.Helper()
	if err := d.Ack(false); err != nil {
		t.Fatal(err)
	}
}

// Each published recipe moves messages as its write-up says, under the names that were chosen.
func TestPublishedRecipes(t *testing.T) {
	for recipe, c := range map[string]struct {
		args   []string
		queues string
		round  func(*testing.T, *brokertest.VHost, *brokertest.Consumer)
	}{
		"retry-queue": {[]string{"--delay", "1s,3s", "--names", "dead-letter-exchange=shop.dlx"}, "orders-retry-1 orders-retry-3", rejectedComesBack},
		"retry-exchange": {[]string{"--names", "work-exchange=WorkExchange,retry-exchange=RetryExchange", "--names", "retry-queue=RetryQueue"},
			"RetryQueue", publishedToTheRetryExchange},
		"wait-exchange": {nil, "orders-error orders-wait", throughErrorAndWait},
	} {
		for _, kind := range []string{"quorum", "classic"} {
			t.Run(recipe+" "+kind, func(t *testing.T) {
				t.Parallel()
				brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
					v.Queue("orders", amqp.Table{"x-queue-type": kind})
					topology(t, v, append([]string{recipe, "--queue", "orders", "--" + kind}, c.args...)...)
					if recipe != "retry-exchange" {
						settled(t, v, "orders", "redrive-recipe.orders")
					}
					for queue := range strings.FieldsSeq(c.queues) {
						q, err := v.API().Queue(context.Background(), queue)
						if err != nil || q.Type != kind {
							t.Fatalf("%s is %s, %v", queue, q.Type, err)
						}
					}
					v.Publish("", "orders", message("order"))
					c.round(t, v, v.Consume("orders"))
					brokertest.Eventually(t, "nothing is left", func() bool {
						left := v.Depth("orders")
						for queue := range strings.FieldsSeq(c.queues) {
							left += v.Depth(queue)
						}
						return left == 0
					})
				})
			})
		}
	}
}

// rejectedComesBack: by the first delay when it is rejected, and by another when it is published
// to that queue's key.
func rejectedComesBack(t *testing.T, v *brokertest.VHost, work *brokertest.Consumer) {
	d := work.Next()
	for range 2 {
		began := time.Now()
		if err := d.Reject(false); err != nil {
			t.Fatal(err)
		}
		d = returned(t, work, "order", began, time.Second)
	}
	began := time.Now()
	v.Publish("shop.dlx", "orders-retry-3", message("order"))
	ack(t, d)
	ack(t, returned(t, work, "order", began, 3*time.Second))
}

func publishedToTheRetryExchange(t *testing.T, v *brokertest.VHost, work *brokertest.Consumer) {
	d := work.Next()
	for _, wait := range []string{"1000", "2000"} {
		began := time.Now()
		again := message("order")
		again.Expiration = wait
		v.Publish("RetryExchange", "orders", again)
		ack(t, d)
		after, _ := time.ParseDuration(wait + "ms")
		d = returned(t, work, "order", began, after)
	}
	ack(t, d)
	v.Publish("WorkExchange", "orders", message("next")) // where publishers publish
	work.Take("next")
}

func throughErrorAndWait(t *testing.T, v *brokertest.VHost, work *brokertest.Consumer) {
	d, errors := work.Next(), v.Consume("orders-error")
	for range 2 {
		if err := d.Reject(false); err != nil {
			t.Fatal(err)
		}
		failed := errors.Next()
		if failed.RoutingKey != "orders" {
			t.Fatalf("the program sees the routing key %q", failed.RoutingKey)
		}
		began, again := time.Now(), message(string(failed.Body))
		again.Expiration = "1000"
		v.Publish("orders-wait", failed.RoutingKey, again)
		ack(t, failed)
		d = returned(t, work, "order", began, time.Second)
	}
	ack(t, d)
}

// Applied, it keeps the policy that there is; undone, that applies again. What exists and is
// different is refused before anything is declared.
func TestApplyingARecipe(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		v.Policy("theirs", "^orders$", 3, map[string]any{"max-length": 1000})
		settled(t, v, "orders", "theirs")
		file := t.TempDir() + "/redrive.yaml"
		if err := os.WriteFile(file, []byte("broker: {url: \""+v.URL()+"\", management: \""+v.Management+"\"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		run := func(args ...string) (int, string) {
			var out, errOut strings.Builder
			code := cli.Run(context.Background(), append([]string{"topology", "retry-queue", "--queue", "orders", "-c", file, "--yes"}, args...), &out, &errOut, cli.Build{Version: "test"})
			return code, out.String() + errOut.String()
		}
		v.Exchange("taken", "topic", "orders")
		v.Queue("orders-retry-2", amqp.Table{"x-queue-type": "quorum"})
		for _, c := range []struct{ args, want string }{
			{"--names dead-letter-exchange=taken", `exchange "taken" exists already, and is not durable and direct as the recipe needs it`},
			{"--delay 2s", `queue "orders-retry-2" exists already, with other arguments than the recipe needs`},
		} {
			if code, out := run(append(strings.Fields(c.args), "--apply")...); code != 1 || !strings.Contains(out, c.want) || !strings.Contains(out, "choose another name by --names") {
				t.Errorf("%s: exit code %d, want %q:\n%s", c.args, code, c.want, out)
			}
		}
		if _, err := v.API().Exchange(context.Background(), "orders-dead-letters"); err == nil {
			t.Error("an exchange was declared for a recipe that was refused")
		}
		code, out := run("--delay", "1s", "--apply")
		for _, want := range []string{"    max-length: 1000", "there is no limit of attempts", `queue "orders-retry-1"`, "done: consumers reject"} {
			if code != 0 || !strings.Contains(out, want) {
				t.Fatalf("exit code %d, %q is not shown:\n%s", code, want, out)
			}
		}
		settled(t, v, "orders", "redrive-recipe.orders")
		v.Publish("", "orders", message("order"))
		work := v.Consume("orders")
		began := time.Now()
		work.Reject()
		ack(t, returned(t, work, "order", began, time.Second))
		if code, out := run("--delay", "1s", "--apply"); code != 0 {
			t.Errorf("a second time: exit code %d: %s", code, out)
		}
		if code, out := run("--undo"); code != 0 {
			t.Errorf("--undo: exit code %d: %s", code, out)
		}
		settled(t, v, "orders", "theirs")
	})
}

// What a person chooses can go wrong in each part of a name.
func TestNamesOfRecipesThatAreRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("q", 250)
	for _, c := range []struct{ args, want string }{
		{"retry-queue --queue q --names retry=x", `there is no part "retry": expected dead-letter-exchange, retry-queue`},
		{"retry-queue --queue q --names retry-queue={queu}", `retry-queue={queu}: {queu} is no placeholder: expected {queue}, {seconds} or {ms}`},
		{"retry-queue --queue q --names dead-letter-exchange={queue}-{seconds}", `{seconds} is no placeholder here: expected {queue}`},
		{"retry-queue --queue q --delay 500ms", `a delay of 500ms is no whole number of seconds`},
		{"retry-queue --queue q --delay 1s,2s --names retry-queue={queue}-retry", `two queues would have the name "q-retry"`},
		{"retry-queue --queue q --delay 1s,1s", `two queues would have the name "q-retry-1"`},
		{"retry-queue --queue q --names retry-queue={queue}", `the work queue has the name "q" already`},
		{"retry-queue --queue q --names retry-queue=", `retry-queue: the name is empty`},
		{"retry-queue --queue q --names dead-letter-exchange=amq.direct", `is RabbitMQ's own`},
		{"retry-queue --queue q --names dead-letter-exchange=redrive", `is one of Redrive's own`},
		{"retry-queue --queue q --names retry-queue=redrive.intake", `is one of Redrive's own`},
		{"retry-queue --queue " + long, `dead-letter-exchange: the name is 263 bytes long, and RabbitMQ's limit is 255`},
		{"retry-exchange --queue q --names work-exchange=x,retry-exchange=x", `two exchanges would have the name "x"`},
		{"wait-exchange --queue q --names error-queue=w,wait-queue=w", `two queues would have the name "w"`},
		{"wait-exchange --queue q --names requeue-exchange={queue}-wait", `two exchanges would have the name "q-wait"`},
	} {
		var out, errOut strings.Builder
		code := cli.Run(t.Context(), append([]string{"topology"}, strings.Fields(c.args)...), &out, &errOut, cli.Build{Version: "test"})
		if code != 2 || !strings.Contains(errOut.String(), c.want) || out.Len() > 0 {
			t.Errorf("%s: exit code %d\n gives %s\n want  %s", c.args, code, errOut.String(), c.want)
		}
	}
}

// With the plugin the wait exchange delays, and there is no wait queue.
func TestTheWaitExchangeOfThePlugin(t *testing.T) {
	t.Parallel()
	var out, errOut strings.Builder
	if code := cli.Run(t.Context(), strings.Fields("topology wait-exchange --queue orders --plugin"), &out, &errOut, cli.Build{Version: "test"}); code != 0 {
		t.Fatal(errOut.String())
	}
	var d struct {
		Exchanges []struct{ Name, Type string }
		Queues    []struct{ Name string }
		Bindings  []struct{ Source, Destination string }
	}
	if err := json.Unmarshal([]byte(out.String()), &d); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range d.Exchanges {
		all = append(all, e.Name+" "+e.Type)
	}
	for _, q := range d.Queues {
		all = append(all, q.Name)
	}
	for _, b := range d.Bindings {
		all = append(all, b.Source+"→"+b.Destination)
	}
	got := strings.Join(all, ", ")
	if want := "orders-error direct, orders-requeue direct, orders-wait x-delayed-message, orders-error, orders-error→orders-error, orders-requeue→orders, orders-wait→orders-requeue"; got != want {
		t.Errorf("it makes %s", got)
	}
	if !strings.Contains(errOut.String(), "cannot run on RabbitMQ 4.3") || !strings.Contains(errOut.String(), "in the header x-delay") {
		t.Errorf("the plugin's limits are not said: %s", errOut.String())
	}
}
