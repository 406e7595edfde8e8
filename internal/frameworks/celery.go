package frameworks

import "github.com/redrive-mq/redrive/wire"

// celery writes no error: its workers reject a message, or acknowledge it and keep the error in
// the result backend. Its headers count retries.
//
// Source, in celery/celery: celery/app/amqp.py (as_task_v2)
var celery = preset{
	name:    "Celery",
	markers: []string{"task"},
	needed:  []string{"id", "retries"},
	read: func(f *Fault, m *wire.Message) {
		h := m.Headers
		f.MessageType = text(h, "task")
		if id := name(raw(h, "id")); id != "" {
			f.MessageID = id
		}
		if retries, counted := number(h, "retries"); counted {
			f.Attempts = attempts(retries)
		}
	},
	restore: func(m *wire.Message) { m.Headers["retries"] = int32(0) },
}
