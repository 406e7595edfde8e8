// Package server puts the service together. It is the only package that knows every
// implementation, and it starts and stops them in order. Read it in this order:
//
//	server.go           the service: New, Run, reload; one vhost for each virtual host
//	vhost.go            one virtual host: what it consists of, and the order in which they start and stop
//	store.go            which engine is opened, and the check whose messages it has
//	throttle.go         the throttle: what its changes log, what people and metrics see of it
//	(consumers.go: the throttle that the scheduler asks, which waits until it knows whether a
//	queue has consumers)
//	listeners.go        passes each event to all listeners (vhost.go has the list), and
//	                    survives their panics
//	conditions.go       what is wrong or waits in this service; readiness follows from it
//	replicas.go         several services on one store: members, leader, shared breakers
//	routes.go           page, API, health and metrics of all virtual hosts behind one port
//	(console.go, access.go: what they are made of, and how callers sign in)
//	brokerwatch.go      what is wrong with RabbitMQ's side: quarantine, foreign consumers
//	notify.go           the conditions that people are notified of
//
// The rest is small: consent.go, nodes.go, activity.go, simulation.go, and
// unservedvhosts.go. storetools.go serves the command line, without a service.
package server
