// Package wire is what Redrive's service, its Go library and any other program that
// joins in agree on: a message, as it was delivered and as it is published, the names of
// exchanges and queues, the headers of a message on its way, and the outcomes of publishing
// one.
package wire
