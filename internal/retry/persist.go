package retry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// keeper makes batches durable in the store.
type keeper struct {
	store       store.Store
	inForce     *InForce // nil: of redrive.quarantine
	events      Listener
	receipts    receipts
	readUpTo    store.ReceiptsAt
	connectedAt time.Time
	lostAt      time.Time // when the outage before it began; zero: not known
	anyBatch    bool      // the connection has delivered something

	// Of the batch under way, by index; all stay when it could not be stored and is passed again: a store on a network
	// may have stored it and yet report an error.
	identities map[int]*identity
	durable    map[int]Event       // of messages that were discarded, or are safe in RabbitMQ or the store: not twice
	tried      map[int]triedRecord // what the store was asked to add, whatever the rules are by now: it recognizes that
	maxAdd     int                 // records to add at once, after there was no room for more; 0: no bound
}

type triedRecord struct {
	rec   *store.Record
	event Event
}

// recordToStore is a record, with the indexes of its message in the batch and of its event.
type recordToStore struct {
	rec                      *store.Record
	messageIndex, eventIndex int
}

// identity is the id of a dead letter, the same for each delivery of it.
type identity struct {
	id          uuid.UUID
	fingerprint [16]byte  // zero: it needs no receipt, since its headers have the id
	firstFailed time.Time // now if not known
	failures    int
	replays     int
	own         bool   // its headers have its history
	note        string // which of the headers do not count
	hasReceipt  bool   // its receipt is in the store already
}

// Connected must be called for each new connection, before Handle: RabbitMQ delivers again what it has no
// acknowledgement of.
func (k *keeper) Connected(ctx context.Context) error {
	_, shared := k.store.(store.Shared)
	k.connectedAt, k.anyBatch = time.Now(), false
	k.receipts.reset(outage{k.lostAt, k.connectedAt}, shared)
	k.forgetBatch() // its messages are delivered again, in other batches
	k.readUpTo = nil
	return k.load(ctx)
}

// unseenOutage estimates when an outage began in which the process before this one stopped together with RabbitMQ: at
// the latest first failure of a message that has a receipt; zero if that is longer ago than maxUnseenOutage.
func (k *keeper) unseenOutage(kept []store.Receipt) (began time.Time) {
	for _, r := range kept {
		if t := r.FirstFailed; t.After(began) && !t.After(k.connectedAt) && k.connectedAt.Sub(t) < maxUnseenOutage {
			began = t
		}
	}
	return began
}

// Disconnected must be called when a connection has ended. One that did not last, as while RabbitMQ starts, is part of
// the outage before it.
func (k *keeper) Disconnected() {
	if now := time.Now(); k.anyBatch || k.lostAt.IsZero() || now.Sub(k.connectedAt) > marginBefore {
		k.lostAt = now
	}
}

// begin must be called before a batch is decided about. Where several services share one store, it reads missing
// receipts: another may have stored a part of the batch, and stopped, after this one connected.
func (k *keeper) begin(ctx context.Context, batch []wire.Delivery) error {
	k.anyBatch = true
	if k.identities != nil {
		return nil // it is passed again
	}
	if _, shared := k.store.(store.Shared); shared && k.receipts.areMissing(batch) {
		if err := k.load(ctx); err != nil {
			return err
		}
	}
	k.identities, k.durable, k.tried = map[int]*identity{}, map[int]Event{}, map[int]triedRecord{}
	return nil
}

// identify returns the identity of message i of the batch, the same each time.
func (k *keeper) identify(i int, d *wire.Delivery, now time.Time) *identity {
	if k.identities[i] == nil {
		is := k.receipts.identify(d, now)
		k.identities[i] = &is
	}
	return k.identities[i]
}

func (k *keeper) load(ctx context.Context) (err error) {
	var kept []store.Receipt
	if r, ok := k.store.(store.ReceiptReader); ok {
		kept, k.readUpTo, err = r.NewReceipts(ctx, k.readUpTo)
	} else {
		kept, err = k.store.Receipts(ctx)
	}
	if err != nil {
		return fmt.Errorf("reading receipts: %w", err)
	}
	if k.lostAt.IsZero() && !k.anyBatch {
		k.lostAt = k.unseenOutage(kept)
		k.receipts.outage.began = k.lostAt
	}
	k.receipts.load(kept)
	return nil
}

// keep stores records, and sends the events when all of them are durable.
func (k *keeper) keep(ctx context.Context, records []recordToStore, events []Event, now time.Time) error {
	k.readMadeFrom(ctx, records)
	if err := k.add(ctx, records, events); err != nil {
		return fmt.Errorf("storing %d failed messages: %w", len(records), err)
	}
	k.forgetBatch()
	for i := range events {
		events[i].At = now
		k.events(events[i])
	}
	return nil
}

// readMadeFrom reads from what replayed messages were made. An error stops no intake: their next failure reads again.
func (k *keeper) readMadeFrom(ctx context.Context, records []recordToStore) {
	for _, r := range records {
		if _, tried := k.tried[r.messageIndex]; tried || r.rec.Replays == 0 {
			continue
		}
		var err error
		if r.rec.MadeFrom, err = store.CarriedMadeFrom(ctx, k.store, r.rec); err != nil {
			addNote(r.rec, printable(fmt.Sprintf("it is not known from what it was made: %v", err)))
			return // a store that does not answer takes long to say so
		}
	}
}

// hush lets a message that is parked raise no notification if people have acknowledged or ignored its error group.
func (k *keeper) hush(rec *store.Record) {
	if k.inForce == nil || rec.State != store.Parked {
		return
	}
	if known := k.inForce.known.Load(); known != nil && len(*known) > 0 && (*known)[k.store.GroupOf(rec)] {
		rec.Notify = store.Never
	}
}

func (k *keeper) forgetBatch() { k.identities, k.durable, k.tried, k.maxAdd = nil, nil, nil, 0 }

// add stores records in one commit, or in parts. A store that has no room for that many at once may have room for
// fewer; otherwise one with a small reserve, though empty, would refuse the same batch for ever.
func (k *keeper) add(ctx context.Context, records []recordToStore, events []Event) error {
	for left := records; len(left) > 0; {
		n := len(left)
		if k.maxAdd > 0 {
			n = min(n, k.maxAdd)
		}
		part := make([]*store.Record, n)
		for i, r := range left[:n] {
			part[i] = r.rec
		}
		err := k.store.Add(ctx, part)
		if errors.Is(err, store.ErrFull) && n > 1 {
			k.maxAdd = n / 2
			continue
		}
		if err != nil {
			for _, r := range records {
				k.tried[r.messageIndex] = triedRecord{r.rec, events[r.eventIndex]}
			}
			return err
		}
		for _, r := range left[:n] {
			k.durable[r.messageIndex] = events[r.eventIndex]
		}
		left = left[n:]
	}
	return nil
}

func parkedEvent(r *store.Record) Event {
	return Event{Kind: Parked, Queue: r.Queue, ID: r.ID, Failures: r.Failures, Reason: r.Reason, Error: r.Error,
		Why: r.ParkedFor}
}

type Kind string

// The kinds of events. Log, metrics, notifications and page listen to these.
const (
	Failed    Kind = "failed"    // a dead letter or a report arrived, and is safe (or discarded)
	Waiting   Kind = "waiting"   // it waits for Delay
	Retried   Kind = "retried"   // RabbitMQ confirmed it in its work queue, Late after it was due
	Forwarded Kind = "forwarded" // RabbitMQ confirmed it where its policy, or a person, sends it
	Parked    Kind = "parked"    // kept until a person decides, and Why
	Discarded Kind = "discarded" // by its policy; or, with By, by a person, N of Queue
	Replayed  Kind = "replayed"  // a person replayed N parked or waiting messages of Queue
	Restored  Kind = "restored"  // a person parked N discarded messages of Queue again
	Edited    Kind = "edited"    // a person replaced the message ID of Queue by an edited one
	Copied    Kind = "copied"    // a person has copies of N messages of Queue sent to another queue
	Imported  Kind = "imported"  // a person imported N messages of Queue, which are parked
	Unadopted Kind = "unadopted" // a person had N messages of Queue put back into their dead-letter queue
	Paused    Kind = "paused"    // a person paused the retries of Queue, and Why
	Resumed   Kind = "resumed"   // a person resumed them

	// What the throttle does with the retries of Queue, and Why; with By, a person has forced it.
	Opened       Kind = "opened"        // its breaker is open: nothing is retried
	HalfOpened   Kind = "half-opened"   // a few probes are retried
	Ramping      Kind = "ramping"       // the probes succeeded: more and more are retried
	Closed       Kind = "closed"        // all due messages are retried
	NoConsumer   Kind = "no-consumer"   // something is due, and its queue has no consumer
	ConsumerBack Kind = "consumer-back" // retries are no longer paused for lack of a consumer
)

// InStore is the Way of messages that wait in the service's store, on disk or in Redis. The API has this word.
const InStore = "disk"

// Event is something that happened to a message, several, or a queue.
type Event struct {
	Kind     Kind
	At       time.Time
	Queue    string
	ID       uuid.UUID
	Failures int
	Reason   string // why it failed: one of wire.Reason…
	Error    string // the text that its consumer reported; hostile
	Policy   string // Failed: the one that decided; "": none
	Rule     string // Failed: its rule that decided; "": none
	Ignored  string // Failed: our header that should be a number and is not
	Delay    time.Duration
	Way      string // Waiting: InStore, or the name of the way to wait in RabbitMQ
	Instead  string // Waiting in the store: the way by which RabbitMQ did not accept it
	Late     time.Duration
	Why      string
	N        int
	By       string
}

// Why messages are parked that failed in no consumer, or could not be sent on.
const (
	noPolicy    = "no policy allows the queue %q"
	notEnrolled = "the queue %q is not enrolled"
	queueGone   = "the queue %q does not exist any more"
	noTarget    = "it cannot be forwarded to"
)

// SetupFault returns which mistake in the setup parked a message, and the remedy; "" if none did.
func (e *Event) SetupFault() string {
	is := func(why string) bool { return strings.HasPrefix(e.Why, fmt.Sprintf(why, e.Queue)) }
	switch undecided := strings.HasPrefix(e.Why, "its reason is "); {
	case e.Kind != Parked || e.Queue == "":
	case is(noPolicy):
		return "no policy names it: add it to the queues of a policy"
	case is(notEnrolled):
		return "it is not enrolled: redrive enroll"
	case is(queueGone):
		return "RabbitMQ has no such queue any more: declare it, or replay the messages to another queue"
	case strings.HasPrefix(e.Why, noTarget):
		return "the target of its forwards does not exist: declare it, or change where the policy forwards"
	case undecided && e.Reason == wire.ReasonExpired:
		return "its messages expire before a consumer takes them: raise or remove its TTL"
	case undecided && e.Reason == wire.ReasonMaxLen:
		return "it is full, and drops messages: raise its maximum length, or add consumers"
	}
	return ""
}

// Listener receives every event, on the goroutine that caused it: it must be quick and must
// not block.
type Listener func(Event)
