package frameworks

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/wire"
)

func TestTheTextOfAFault(t *testing.T) {
	for want, f := range map[string]Fault{
		"":                     {},
		"no stock":             {Error: "no stock"},
		"a.B":                  {Type: "a.B"},
		"a.B: no stock":        {Type: "a.B", Error: "no stock"},
		"a.B: no":              {Type: "a.B", Error: "a.B: no"},
		"a.B: no\n\tat c.d()":  {Type: "a.B", Error: "no", Stack: "a.B: no\n\tat c.d()\n"},
		"a.B: why\n\tat c.d()": {Type: "a.B", Error: "why", Stack: "\tat c.d()"},
		"Traceback":            {Stack: "Traceback"},
	} {
		if got := f.Text(); got != want {
			t.Errorf("%+v: %q, want %q", f, got, want)
		}
	}
}

func TestAMessageOfNoFramework(t *testing.T) {
	m := &wire.Message{Exchange: "shop", Headers: amqp.Table{"tenant": "acme"}}
	if f, found := ReadFrom("q", m); found || f != (Fault{}) {
		t.Errorf("read as %+v", f)
	}
	if r, f, err := Restore("q", m); r != m || f != (Fault{}) || err != nil {
		t.Errorf("restored as %+v, %+v, %v", r, f, err)
	}
}
