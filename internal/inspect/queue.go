package inspect

import "time"

// Queue is a work queue: what the service keeps for it, and what RabbitMQ says.
type Queue struct {
	Name      string     `json:"queue"`
	Policy    string     `json:"policy,omitempty"`
	Way       string     `json:"way,omitempty" doc:"How its messages wait: disk or redis (in the store), or a way of RabbitMQ's, which knows how many."`
	Waiting   int64      `json:"waiting" doc:"In the store. Messages that wait in RabbitMQ are not counted here."`
	Parked    int64      `json:"parked"`
	Discarded int64      `json:"discarded"`
	NextDue   *time.Time `json:"next_due,omitempty" doc:"When the first waiting message is due."`
	Oldest    *time.Time `json:"oldest,omitempty" doc:"When the message with the earliest due time last failed."`
	Failed    int64      `json:"failed_per_minute" doc:"In the last minute."`
	Retried   int64      `json:"retried_per_minute" doc:"In the last minute."`
	ParkedIn  int64      `json:"parked_per_minute" doc:"In the last minute."`
	// Unreachable is named blocked in the API.
	Unreachable string        `json:"blocked,omitempty" doc:"Why messages cannot be published to it now, so that none is retried; absent when they can."`
	Pause       *QueuePause   `json:"pause,omitempty" doc:"Set by a person."`
	Throttle    *ThrottleView `json:"throttle,omitempty" doc:"How its retries are limited; absent when they are not."`
	Broker      *AtBroker     `json:"broker,omitempty" doc:"What RabbitMQ says; absent when it does not answer."`
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
	Kind      string `json:"kind,omitempty" doc:"classic, quorum or stream; absent when the management API does not answer."`
	Consumers int    `json:"consumers"`
	Ready     int    `json:"ready"`
	Unacked   *int   `json:"unacked,omitempty" doc:"Absent when the management API does not answer."`
}

// BrokerColumns show what RabbitMQ says of a queue, on the page and on the command line.
var BrokerColumns = []Column[AtBroker]{{Field: "Consumers"}, {Field: "Ready"}, {Field: "Unacked"}}

// QueueCounts show what the service counts of a queue, likewise.
var QueueCounts = []Column[Queue]{{Field: "Waiting"}, {Field: "Parked"}}
