package console

// queueCache is what Queues remembers for a few seconds.
type queueCache struct{}
