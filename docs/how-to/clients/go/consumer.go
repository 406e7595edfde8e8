// A consumer of the queue orders by AMQP 1.0. When a message fails, it tells Redrive why.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"

	"github.com/Azure/go-amqp"
)

// Your code. It returns what Redrive should know of a failure; nil: the order is paid.
func pay(order []byte) amqp.Annotations {
	answer, err := http.Post(os.Getenv("PAYMENTS_URL"), "application/json", bytes.NewReader(order))
	if err != nil {
		return amqp.Annotations{"x-redrive-rejected-for": fmt.Sprintf("%.1000s", err)}
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	text, _ := io.ReadAll(answer.Body)
	says := amqp.Annotations{"x-redrive-rejected-for": fmt.Sprintf("%.1000s", text)}
	if answer.StatusCode == http.StatusGone {
		says["x-redrive-park"] = "the customer is gone"
	} else if s, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil {
		says["x-redrive-delay"] = int64(s) * 1000 // milliseconds
	}
	return says
}

func main() {
	ctx := context.Background()
	conn, err := amqp.Dial(ctx, os.Getenv("AMQP_URL"), &amqp.ConnOptions{HostName: "vhost:" + os.Getenv("AMQP_VHOST")})
	check(err)
	session, err := conn.NewSession(ctx, nil)
	check(err)
	orders, err := session.NewReceiver(ctx, "/queues/orders", nil)
	check(err)
	for {
		message, err := orders.Receive(ctx, nil)
		check(err)
		if says := pay(message.GetData()); says == nil {
			check(orders.AcceptMessage(ctx, message))
		} else {
			check(orders.ModifyMessage(ctx, message,
				&amqp.ModifyMessageOptions{UndeliverableHere: true, Annotations: says}))
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err) // RabbitMQ delivers again what was not settled
	}
}
