package notify

import (
	"fmt"
	"slices"
	"strings"
)

// Kind of an event.
type Kind string

// Parked is an event that is counted; all others are conditions, which begin and end.
const (
	Parked         Kind = "parked"
	ParkedBurst    Kind = "parked_burst"
	ParkedRising   Kind = "parked_rising"
	WaitingRising  Kind = "waiting_rising"
	QueuePaused    Kind = "queue_paused" // by a person, or because it is unreachable
	ForwardStopped Kind = "forward_stopped"
	BreakerOpen    Kind = "breaker_open"
	NoConsumer     Kind = "no_consumer"
	QueueFilling   Kind = "queue_filling"
	IntakeStopped  Kind = "intake_stopped"
	BrokerBlocked  Kind = "broker_blocked"
	OldestWaiting  Kind = "oldest_waiting"
	LedgerOff      Kind = "ledger_off"
)

// Meaning is a kind with its texts.
type Meaning struct {
	Kind     Kind
	Severity Severity
	Means    string // of a queue, where it concerns one
	Over     string // the same when it is over
	// Alert is its name in Alertmanager, the same from Redrive and from Prometheus.
	Alert string
}

// Kinds are all of them, with their texts. Each severity is also that of the rule of Prometheus
// with the name Alert, where there is one.
var Kinds = []Meaning{
	{Parked, Warning, "messages parked", "", "RedriveParked"},
	{ParkedBurst, Critical, "many messages are parked", "no longer many messages are parked", "RedriveParkedBurst"},
	{ParkedRising, Warning, "many more messages are parked than usual", "no more messages are parked than usual", "RedriveParkedRising"},
	{WaitingRising, Warning, "many more messages wait for a retry than usual", "no more messages wait for a retry than usual", "RedriveWaitingRising"},
	{QueuePaused, Warning, "the retries are paused", "the retries go on", "RedriveQueuePaused"},
	{ForwardStopped, Warning, "messages are not forwarded", "messages are forwarded again", "RedriveForwardStopped"},
	{BreakerOpen, Critical, "the circuit breaker is open", "the circuit breaker is closed again", "RedriveBreakerOpen"},
	{NoConsumer, Critical, "the queue has no consumers", "messages no longer wait for a consumer", "RedriveNoConsumers"},
	{QueueFilling, Warning, "the queue fills up and has no consumers", "the queue no longer fills up", "RedriveQueueFilling"},
	{IntakeStopped, Critical, "failed messages stay in RabbitMQ: the intake has stopped", "the intake goes on", "RedriveIntakeStopped"},
	{BrokerBlocked, Critical, "an alarm of RabbitMQ's blocks publishing", "RabbitMQ's alarm is over", "RedriveBrokerBlocked"},
	{OldestWaiting, Warning, "messages wait too long", "messages no longer wait too long", "RedriveOldestWaiting"},
	{LedgerOff, Critical, "the ledger is off: messages came in that are neither retried, parked, discarded nor waiting", "the ledger is right again", "RedriveLedgerOff"},
}

// OnlyInPrometheus are the alerts of deploy/prometheus that are no event, with their severities:
// they need Prometheus's memory, or are about the service itself.
var OnlyInPrometheus = map[string]Severity{
	"RedriveFailuresBurnFast":   Critical,
	"RedriveFailuresBurnSlowly": Warning,
	"RedriveOverdue":            Critical,
	"RedrivePauseForgotten":     Warning,
	"RedriveDisconnected":       Critical,
	"RedriveStoreFilling":       Warning,
	"RedriveQuarantine":         Warning,
	"RedriveDeletedInRabbitMQ":  Critical,
	"RedriveConfigRefused":      Warning,
	"RedriveNotificationsFail":  Warning,
}

// OnlyNotified are the events for which Prometheus has no rule: parked is counted, and Prometheus
// reports a pause only when it is forgotten.
var OnlyNotified = []Kind{Parked, QueuePaused}

// KindNames are their names in a config.
func KindNames() (names []string) {
	for _, k := range Kinds {
		names = append(names, string(k.Kind))
	}
	return names
}

func meaningOf(k Kind) Meaning {
	if i := slices.IndexFunc(Kinds, func(m Meaning) bool { return m.Kind == k }); i >= 0 {
		return Kinds[i]
	}
	return Meaning{Kind: k, Means: strings.ReplaceAll(string(k), "_", " "), Alert: "Redrive"}
}

// Severity of an event.
type Severity int

const (
	Info Severity = iota
	Warning
	Critical
)

var severities = []string{"info", "warning", "critical"}

func (s Severity) String() string { return severities[s] }

// ParseSeverity reads what String writes.
func ParseSeverity(s string) (Severity, error) {
	if i := slices.Index(severities, s); i >= 0 {
		return Severity(i), nil
	}
	return 0, fmt.Errorf("%.40q is not a severity; expected info, warning or critical", s)
}
