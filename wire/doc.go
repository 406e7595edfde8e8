// Package wire has what Redrive's service, its Go library and other programs must agree on: a
// message, as it is delivered and as it is published, the names of exchanges and queues, the
// headers that Redrive adds, and the errors of publishing, declaring and connecting.
package wire
