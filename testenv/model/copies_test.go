package model_test

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

var copying = []behaviour{
	{"copies by CC and BCC, and their dead letters", func(w *world) {
		for _, kind := range bothTypes {
			for _, keyed := range []bool{true, false} {
				name := fmt.Sprint(kind, keyed)
				w.must(w.ch.ExchangeDeclare("dead "+name, "direct", true, false, false, false, nil))
				args := amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "dead " + name}
				if keyed {
					args["x-dead-letter-routing-key"] = name
				}
				w.queue(name, args)
				for _, key := range []string{name, "cc", "bcc"} {
					w.queue("dead "+key+" "+name, nil)
					w.must(w.ch.QueueBind("dead "+key+" "+name, key, "dead "+name, false, nil))
				}
				w.publish("", name, amqp.Publishing{Headers: amqp.Table{"CC": []any{"cc"}, "BCC": []any{"bcc"}}, Body: []byte("m")})
				w.reject(name)
				d := w.get("dead " + name + " " + name)
				stays := !keyed || w.since4
				if d.Headers["BCC"] != nil || (d.Headers["CC"] != nil) != stays {
					w.Errorf("%s: dead-lettered with CC %v, BCC %v", name, d.Headers["CC"], d.Headers["BCC"])
				}
				first := d.Headers["x-death"].([]any)[0].(amqp.Table)
				w.is("routing keys", fmt.Sprint(first["routing-keys"]), "["+name+" cc]")
				for _, key := range []string{"cc", "bcc"} { // of the first routing, unless the queue has its own key
					if _, is, err := w.ch.Get("dead "+key+" "+name, true); err != nil || is == keyed {
						w.Errorf("%s: a copy with key %s: %t, %v", name, key, is, err)
					}
				}
			}
		}
	}},
}
