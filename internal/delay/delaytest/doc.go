// Package delaytest is the suite that every way to wait in RabbitMQ passes, on
// every version: its tests only. The table in ways_test.go has a line for each,
// and the build fails over a way without one.
package delaytest
