// Package redrive brings failed RabbitMQ messages back to their queue after a
// delay that grows, and parks what keeps failing.
//
// The service (cmd/redrive) does this for consumers in any language. This
// package holds what the service and Go programs share: the message, the names
// on the wire, and the headers that a returned message carries.
package redrive
