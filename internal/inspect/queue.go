package inspect

import "time"

// Group is the failures with the same error.
type Group struct {
	ID        string    `json:"id"`
	Queue     string    `json:"queue"`
	Reason    string    `json:"reason"`
	Error     string    `json:"error,omitempty" doc:"With numbers, ids and times replaced."`
	Type      string    `json:"type,omitempty" doc:"Of the messages, where no error is known."`
	Waiting   int64     `json:"waiting"`
	Parked    int64     `json:"parked"`
	Discarded int64     `json:"discarded"`
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
	Hours     []int64   `json:"hours" doc:"Failures in each of the last 24 hours, the current one last."`
	Note      string    `json:"note,omitempty"`
}

// GroupPage is a page of groups.
type GroupPage struct {
	Groups []Group `json:"groups"`
	Total  int     `json:"total" doc:"How many groups the query finds, on all pages."`
	After  string  `json:"after,omitempty" doc:"Ask with it for the next page; absent on the last."`
}

// Queue is a work queue: what the service keeps for it, and what RabbitMQ says.
type Queue struct {
	Name      string        `json:"queue"`
	Policy    string        `json:"policy,omitempty"`
	Way       string        `json:"way,omitempty" doc:"How its messages wait: disk, or a way of RabbitMQ's, which knows how many."`
	Waiting   int64         `json:"waiting" doc:"In the store. Messages that wait in RabbitMQ are not counted here."`
	Parked    int64         `json:"parked"`
	Discarded int64         `json:"discarded"`
	NextDue   *time.Time    `json:"next_due,omitempty" doc:"When the first waiting message is due."`
	Oldest    *time.Time    `json:"oldest,omitempty" doc:"When the message with the earliest due time last failed."`
	Failed    int64         `json:"failed_per_minute" doc:"In the last minute."`
	Retried   int64         `json:"retried_per_minute" doc:"In the last minute."`
	ParkedIn  int64         `json:"parked_per_minute" doc:"In the last minute."`
	Blocked   string        `json:"blocked,omitempty" doc:"Why its retries are blocked; absent when they work."`
	Pause     *QueuePause   `json:"pause,omitempty" doc:"Set by a person."`
	Throttle  *ThrottleView `json:"throttle,omitempty" doc:"How its retries are limited; absent when they are not."`
	Broker    *AtBroker     `json:"broker,omitempty" doc:"What RabbitMQ says; absent when its management API does not answer."`
}

// QueuePause is a person's pause of a queue's retries.
type QueuePause struct {
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// AtBroker is a queue as RabbitMQ has it.
type AtBroker struct {
	Exists    bool   `json:"exists"`
	Kind      string `json:"kind,omitempty" doc:"classic, quorum or stream."`
	Consumers int    `json:"consumers"`
	Ready     int    `json:"ready"`
	Unacked   int    `json:"unacked"`
}

// PolicyInForce is a policy, and the waits it gives.
type PolicyInForce struct {
	Name      string   `json:"name"`
	Queues    []string `json:"queues"`
	Attempts  int      `json:"attempts"`
	Backoff   string   `json:"backoff"`
	Jitter    string   `json:"jitter"`
	Reasons   []string `json:"reasons"`
	Exhausted string   `json:"exhausted"`
	Way       string   `json:"wait"`
	Limits    string   `json:"throttle" doc:"Limits on retries: rate, in flight, breaker. Empty: none. (Retries also wait for consumers.)"`
	// Waits is the delay after each failure but the last.
	Waits []Wait `json:"waits"`
}

// Wait is a delay of a policy: with jitter, from least to most.
type Wait struct {
	Attempt int    `json:"attempt"`
	Least   string `json:"least"`
	Most    string `json:"most"`
}

// Overview is the state of the service on one page.
type Overview struct {
	Version   string    `json:"version"`
	Since     time.Time `json:"since" doc:"When the service started."`
	Now       time.Time `json:"now"`
	Broker    string    `json:"broker" doc:"Where RabbitMQ is, without the password."`
	ReadOnly  bool      `json:"read_only"`
	Ready     bool      `json:"ready" doc:"As /readyz says."`
	Problems  []string  `json:"problems" doc:"What is wrong now, with single queues also while it is ready; empty when nothing is."`
	Notices   []string  `json:"notices,omitempty" doc:"What needs a person's attention, though it stops nothing."`
	Waiting   int64     `json:"waiting"`
	Parked    int64     `json:"parked"`
	Discarded int64     `json:"discarded"`
	// Oldest is when the waiting message with the earliest due time last failed.
	Oldest    *time.Time `json:"oldest,omitempty" doc:"When the message with the earliest due time last failed."`
	NextDue   *time.Time `json:"next_due,omitempty"`
	PerMinute Flow       `json:"per_minute" doc:"In the last minute."`
	Hour      []Flow     `json:"hour" doc:"Each of the last 60 minutes, the current one last."`
	Calendar  []Slot     `json:"calendar" doc:"Upcoming retries, by time, in the next hours."`
	Queues    []Queue    `json:"queues"`
	// MoreQueues is of those that are left out.
	MoreQueues int       `json:"more_queues,omitempty" doc:"How many queues are left out: the list of queues has them, a page at a time."`
	Replicas   []Replica `json:"replicas,omitempty" doc:"The services that share the store, in the order of their ids; absent where only one can."`
}

// Flow is what happened in a minute.
type Flow struct {
	Failed    int64 `json:"failed"`
	Retried   int64 `json:"retried"`
	Parked    int64 `json:"parked"`
	Discarded int64 `json:"discarded"`
}

// Slot is how many messages are due in a stretch of time.
type Slot struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Count int64     `json:"count"`
	// AtLeast: there are more; counting them all would have taken too long.
	AtLeast bool `json:"at_least,omitempty"`
}
