// Package redrive retries failed RabbitMQ messages with a delay that grows, and
// parks what keeps failing, for consumers written in Go.
package redrive
