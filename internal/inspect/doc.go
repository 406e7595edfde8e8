// Package inspect is what a person sees: messages, groups of failures, queues, policies, the
// ledger and the audit log, for the page, the HTTP API and the command line. Each method
// that has a caller checks what they may see, and none changes a message. Read it in this order:
//
//	inspector.go    what it needs
//	message.go      messages as they are shown; columns.go: lists as tables and as CSV
//	search.go       a query answered page by page; find.go: what the store is asked; past.go:
//	                messages that are no longer kept
//	detail.go       one message in full; envelope.go: its properties and headers
//	queue.go        a queue as it is shown; throttle.go: how its retries are limited;
//	                settings.go: what people set for it
//	queues.go, groups.go, policies.go, overview.go: lists; calendar.go: what is due when
//	queuecounts.go  what a store counted, and its pages; brokerqueues.go: what RabbitMQ says
//	ledger.go       how many messages came, and what became of them; recount.go: counted
//	                one by one
//	totals.go       the numbers of one moment, for those who watch
//	replicas.go     the services that share a store
//	auditlog.go     who did what
package inspect
