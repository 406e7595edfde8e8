package cli_test

import (
	"encoding/json"
	"net/url"
	"strconv"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// setUp adds the commands by which a script makes what was there before Redrive:
//
//	declare QUEUE ARGUMENTS            as JSON; whole numbers and text
//	bind EXCHANGE KIND QUEUE           with the queue's name as routing key
//	publish EXCHANGE KEY BODY...
//	policy NAME PATTERN PRIORITY DEFINITION
//	operator-policy NAME PATTERN PRIORITY DEFINITION
//	consume QUEUE, unconsume           holds its messages, and lets go
//	as USER PASSWORD                   at the management API, from here on
//	in-force POLICY QUEUE              waits for it; - for none
func setUp(t *testing.T, cmds map[string]func(*testscript.TestScript, bool, []string), v *brokertest.VHost) {
	object := func(ts *testscript.TestScript, text string) (m map[string]any) {
		ts.Check(json.Unmarshal([]byte(text), &m))
		return m
	}
	cmds["declare"] = func(ts *testscript.TestScript, _ bool, args []string) {
		table := amqp.Table{}
		for k, a := range object(ts, args[1]) {
			if f, ok := a.(float64); ok {
				a = int64(f)
			}
			table[k] = a
		}
		v.Queue(args[0], table)
	}
	cmds["bind"] = func(_ *testscript.TestScript, _ bool, args []string) { v.Exchange(args[0], args[1], args[2]) }
	cmds["publish"] = func(_ *testscript.TestScript, _ bool, args []string) {
		for _, body := range args[2:] {
			v.Publish(args[0], args[1], amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)})
		}
	}
	policy := func(kind string) func(*testscript.TestScript, bool, []string) {
		return func(ts *testscript.TestScript, _ bool, args []string) {
			priority, err := strconv.Atoi(args[2])
			ts.Check(err)
			v.Must("PUT", kind+"/"+v.Name+"/"+args[0], map[string]any{"pattern": args[1], "apply-to": "queues", "priority": priority, "definition": object(ts, args[3])})
		}
	}
	cmds["policy"], cmds["operator-policy"] = policy("policies"), policy("operator-policies")
	var consumer *brokertest.Consumer
	cmds["consume"] = func(_ *testscript.TestScript, _ bool, args []string) { consumer = v.Consume(args[0]) }
	cmds["unconsume"] = func(ts *testscript.TestScript, _ bool, _ []string) { ts.Check(consumer.Channel.Close()) }
	cmds["as"] = func(ts *testscript.TestScript, _ bool, args []string) {
		u, err := url.Parse(v.Management)
		ts.Check(err)
		u.User = url.UserPassword(args[0], args[1])
		ts.Setenv("REDRIVE_MANAGEMENT_URL", u.String())
	}
	cmds["in-force"] = func(_ *testscript.TestScript, _ bool, args []string) {
		want := args[0]
		if want == "-" {
			want = ""
		}
		settled(t, v, args[1], want)
	}
}
