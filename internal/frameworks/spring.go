package frameworks

import (
	"strings"

	"github.com/redrive-mq/redrive/wire"
)

// spring republishes a message by its RepublishMessageRecoverer; the binder of Spring Cloud Stream
// with republishToDlq writes the same headers. It writes no type and no queue.
//
// Source, in spring-projects/spring-amqp:
// spring-rabbit/src/main/java/org/springframework/amqp/rabbit/retry/RepublishMessageRecoverer.java,
// spring-amqp/src/main/java/org/springframework/amqp/core/MessageProperties.java (retry-count)
var spring = preset{
	name:    "Spring AMQP",
	markers: []string{"x-exception-message", "x-exception-stacktrace"},
	read: func(f *Fault, m *wire.Message) {
		h := m.Headers
		f.Error, f.Stack = text(h, "x-exception-message"), text(h, "x-exception-stacktrace")
		f.Exchange, f.RoutingKey = name(raw(h, "x-original-exchange")), name(raw(h, "x-original-routingKey"))
		f.Type = javaType(raw(h, "x-exception-stacktrace"))
		if retries, counted := number(h, "retry-count"); counted {
			f.Attempts = attempts(retries)
		}
	},
	prefixes: []string{"x-exception-"},
	removed:  []string{"x-original-exchange", "x-original-routingKey", "retry-count"},
}

// javaType returns the type of the exception whose message Spring writes: that of the first cause
// in a stack, or of the exception itself.
func javaType(stack string) string {
	if _, cause, ok := strings.Cut(stack, "\nCaused by: "); ok {
		stack = cause
	}
	line, _, _ := strings.Cut(stack, "\n")
	return typeIn(line)
}
