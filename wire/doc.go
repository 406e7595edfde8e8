// Package wire is what Redrive's service, its Go library and any other program that
// joins in agree on: the message, the names of exchanges and queues, the headers
// of a message on its way, and the outcomes of publishing one.
package wire
