// Package server puts the service together. It is the only package that knows every
// implementation, and it starts and stops them in order. Read it in this order:
//
//	server.go           the service: New, Run, reload; one vhost for each virtual host
//	vhost.go            one virtual host: what it consists of, and the order in which they start and stop
//	store.go            which engine is opened, and the check whose messages it has
//	throttle.go         what the scheduler asks before it retries, and what is logged of it
//	(consumers.go: how many consumers a queue has; breakers.go: what a person sees of it, and sets)
//	listeners.go        passes each event to all that listen (vhost.go says who), and
//	                    survives their panics
//	health.go           what is wrong now, by part of the service; readiness follows from it
//	replicas.go         several services on one store: members, leader, shared breakers
//	routes.go           page, API, health and metrics of all virtual hosts behind one port
//	(console.go, access.go: what they are made of, and how callers sign in)
//	brokerwatch.go      what is wrong with RabbitMQ's side: quarantine, foreign consumers
//	notify.go           the conditions that people are notified of
//
// The rest is small: consent.go, ledger.go, nodes.go, activity.go, simulation.go, and
// unservedvhosts.go. storetools.go serves the command line, without a service.
package server
