package frameworks

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/wire"
)

// dramatiq has all that it knows in the body. A message that it gives up on is rejected as it was
// delivered, so that its traceback is of the attempt before.
//
// Source, in Bogdanp/dramatiq: dramatiq/message.py, dramatiq/middleware/retries.py,
// dramatiq/brokers/rabbitmq.py, dramatiq/common.py
var dramatiq = envelope{
	name: "Dramatiq",
	open: func(queue string, m *wire.Message) (f Fault, inner *wire.Message, ok bool, err error) {
		if !isObject(m.Body, "queue_name", "actor_name", "options", "message_id") {
			return f, nil, false, nil
		}
		var task struct {
			Queue   loose `json:"queue_name"`
			Actor   loose `json:"actor_name"`
			ID      loose `json:"message_id"`
			Options *struct {
				Retries   loose  `json:"retries"`
				Traceback string `json:"traceback"`
				Requeued  loose  `json:"requeue_timestamp"` // milliseconds
			} `json:"options"`
		}
		if !fromJSON(m.Body, &task) || task.Options == nil || task.Actor == "" {
			return f, nil, false, nil
		}
		o := task.Options
		f.Stack = printable(tail(o.Traceback))
		f.Type, f.Error = raisedIn(o.Traceback)
		f.Type, f.Error = printable(f.Type), printable(f.Error)
		f.Queue = name(strings.TrimSuffix(string(task.Queue), ".DQ"))
		f.RoutingKey = f.Queue // it publishes to the default exchange
		f.MessageType, f.MessageID = task.Actor.text(), name(string(task.ID))
		if retries, counted := count(string(o.Retries)); counted {
			f.Attempts = attempts(retries)
		} else {
			f.Attempts = 1
		}
		if ms, err := strconv.ParseInt(string(o.Requeued), 10, 64); err == nil {
			f.Failed = believable(time.UnixMilli(ms))
		}
		r := *m
		r.Exchange, r.RoutingKey = "", f.Queue
		r.Body, err = edited(m.Body, func(member string, value json.RawMessage) (json.RawMessage, bool) {
			switch member {
			case "queue_name":
				if now, err := json.Marshal(f.Queue); f.Queue != "" && err == nil {
					return now, true
				}
			case "options":
				if now, err := edited(value, without("retries", "traceback", "requeue_timestamp", "eta")); err == nil {
					return now, true
				}
			}
			return value, true
		})
		if err != nil {
			return f, nil, true, err
		}
		return f, &r, true, nil
	},
}

// tail returns the end of a traceback, which has the error.
func tail(traceback string) string {
	traceback = strings.TrimRight(traceback, " \r\n")
	if len(traceback) <= maxText {
		return traceback
	}
	traceback = traceback[len(traceback)-maxText:]
	return traceback[strings.IndexByte(traceback, '\n')+1:]
}
