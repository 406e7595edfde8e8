package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/wire"
)

type State uint8

const (
	Waiting   State = 1 // to be retried or forwarded, not before Due
	Parked    State = 2 // kept until a person replays or discards it
	Discarded State = 3 // discarded by a person, who can restore it until Due
)

// Record is a failed message and what Redrive knows of it.
type Record struct {
	// ID is what the consumer sees as x-redrive-id. It names the message, not the record: after a crash two records can
	// carry the same ID, and a publisher can forge one, so no store may use it as a unique key.
	ID    uuid.UUID
	Queue string // the work queue it failed in
	State State
	// Due is, for Waiting, when it is retried at the earliest; for Parked, when it was parked; for Discarded, until
	// when it can be restored. Microseconds are kept.
	Due time.Time

	Failures    int
	Replays     int
	Reason      string // wire.Reason…
	Error       string // the text that the consumer reported, or ""
	Policy      string
	Rule        string    // its rule that decided; "": none
	Notify      Notify    // how people are notified when it is parked
	FirstFailed time.Time // of this message, over all attempts since it was first published
	FailedAt    time.Time // of this failure
	ParkedFor   string    // Parked: why, in words for a person
	Notes       []string  // what was wrong with its headers, in words for a person

	// Proven: the broker itself dead-lettered it from Queue, so its retry exchange may be declared. A failure reported
	// by a client proves nothing.
	Proven bool
	// Forward, when set, is where its policy forwards it, or a person copies it, instead of
	// Queue.
	Forward *Destination

	// MadeFrom is the message that a person edited or copied to make this one; MadeInto, in an edited original, is the
	// message that replaced it.
	MadeFrom, MadeInto uuid.UUID

	// Fingerprint is the same for two deliveries of one dead letter, and differs between dead letters as far as content
	// can: see Receipt. Zero when it needs none.
	Fingerprint [16]byte

	// Format names the row of package retry's table of formats that an adopted message matches, which says
	// what publishing removes; "": nothing.
	Format string
	// Envelope is set when Message.Body is still as in a framework's error queue: in an envelope, or with a count of
	// retries. It has the properties and headers of arrival; Message has the message's own. See retry.Unwrapped.
	Envelope *wire.Message

	// AdoptedFrom is the dead-letter queue that the message was adopted from, if any.
	AdoptedFrom string
	// HeldUntil is set while it is put back into AdoptedFrom. Nothing else may change it until then.
	HeldUntil time.Time

	// Imported: a person adds it, so Add does not count it in EverParked. Not stored.
	Imported bool

	// Unreadable is why the stored record cannot be read; all other fields are empty then. Change calls edit with such
	// a record too.
	Unreadable error

	Message wire.Message // as first published, except for what the broker changed
}

func (r *Record) Group() errorgroup.Group {
	return errorgroup.Of(r.Queue, r.Reason, r.Error, r.Message.Type)
}

// Validate returns an error for a record that no store can keep. Neither RabbitMQ nor Redrive's own
// code makes such a record, but a person may, by import.
func (r *Record) Validate() error {
	if r.State < Waiting || r.State > Discarded {
		return fmt.Errorf("message %s of queue %q has no state: %d", r.ID, r.Queue, r.State)
	}
	if len(r.Queue) > 255 {
		return fmt.Errorf("message %s: a queue's name has at most 255 bytes, not %d: %.300q", r.ID,
			len(r.Queue), r.Queue)
	}
	return nil
}

// Held reports whether the message is being put back into its dead-letter queue.
func (r *Record) Held(now time.Time) bool { return now.Before(r.HeldUntil) }

func (r *Record) NewlyParked() bool { return r.State == Parked && !r.Imported }

// EverParked returns the column in which the record is counted when it is parked.
func (r *Record) EverParked() Column {
	switch r.Notify {
	case Urgent:
		return EverParkedUrgent
	case Never:
		return EverParkedQuietly
	}
	return EverParked
}

// Notify is how people are notified when a message is parked, as the rules of its policy say.
type Notify uint8

const (
	AsUsual Notify = 0
	Urgent  Notify = 1
	Never   Notify = 2
)

func (n Notify) String() string { return [...]string{"", "urgent", "never"}[min(n, Never)] }

// ValidateEdit returns an error for a record that Change cannot store in place of was.
func (r *Record) ValidateEdit(was *Record) error {
	if r.ID != was.ID {
		return fmt.Errorf("message %s of queue %q was given another id: add a new one instead", was.ID, was.Queue)
	}
	return r.Validate()
}

// Ended returns how a record's wait ends when RabbitMQ confirms it, and the ledger's column
// for that.
func (r *Record) Ended() (Ending, Column) {
	if r.Forward != nil {
		return EndedForwarded, Forwarded
	}
	return EndedRetried, Retried
}

// Replay makes a parked record, or a copy of any, waiting: due at due, without failures, with its own queue as the
// target, and replayed once more.
func (r *Record) Replay(due time.Time) {
	r.State, r.Due, r.ParkedFor = Waiting, due, ""
	r.Failures, r.Forward = 0, nil
	r.Replays = min(r.Replays+1, wire.MaxAttempt)
}

// Destination is an exchange and a routing key; the empty exchange with a
// queue's name is that queue.
type Destination struct {
	Exchange   string
	RoutingKey string
}

// Receipt is the ID that a dead letter got, and when it first failed. When the connection or the process ends between
// storing and acknowledging a dead letter, RabbitMQ delivers it again: by the receipt the second record gets the ID of
// the first, so that the consumer can recognize the duplicate.
type Receipt struct {
	Fingerprint [16]byte
	ID          uuid.UUID
	FirstFailed time.Time // stores keep microseconds
	Process     string    // the process that wrote it; only from NewReceipts
}

// Receipt returns the receipt of a record with a fingerprint.
func (r *Record) Receipt() Receipt {
	return Receipt{Fingerprint: r.Fingerprint, ID: r.ID, FirstFailed: r.FirstFailed.Truncate(time.Microsecond).UTC()}
}

// ReceiptsOf returns the receipts of the records that have a fingerprint.
func ReceiptsOf(records []*Record) []Receipt {
	var all []Receipt
	for _, r := range records {
		if r.Fingerprint != ([16]byte{}) {
			all = append(all, r.Receipt())
		}
	}
	return all
}

// HashOf hashes a batch: the same for two tries to add it, different for any other batch. It includes
// FailedAt, since a replayed message can reach the same number of failures again.
func HashOf(records []*Record) (of [sha256.Size]byte) {
	h := sha256.New()
	var b []byte
	for _, r := range records {
		b = binary.AppendVarint(append(append(b[:0], r.ID[:]...), r.Queue...), int64(r.Failures))
		b = binary.AppendVarint(b, r.FailedAt.UnixMicro())
		h.Write(b)
	}
	h.Sum(of[:0])
	return of
}

const ReceiptSize = 16 + 16 + 8

func (r Receipt) Append(b []byte) []byte {
	b = append(append(b, r.Fingerprint[:]...), r.ID[:]...)
	return binary.BigEndian.AppendUint64(b, uint64(r.FirstFailed.UnixMicro()))
}

// ReadReceipt decodes a receipt of ReceiptSize bytes.
func ReadReceipt(b []byte) (r Receipt) {
	copy(r.Fingerprint[:], b)
	copy(r.ID[:], b[16:])
	r.FirstFailed = time.UnixMicro(int64(binary.BigEndian.Uint64(b[32:]))).UTC()
	return r
}

// Key names one record within its store for as long as it is kept, whatever its state. It is printable, and opaque to
// all but engines.
type Key string

// MakeKey makes the key of a record from its ID, and the number that it got when it was
// added, which distinguishes it from others with that ID.
func MakeKey(id uuid.UUID, seq uint64) Key {
	k := hex.AppendEncode(make([]byte, 0, 64), id[:4])
	for _, part := range [...][]byte{id[4:6], id[6:8], id[8:10], id[10:]} {
		k = hex.AppendEncode(append(k, '-'), part)
	}
	return Key(strconv.AppendUint(append(k, '.'), seq, 10))
}

// Parts returns what MakeKey made the key from; ok is false for a text that is no key.
func (k Key) Parts() (id uuid.UUID, seq uint64, ok bool) {
	text, number, _ := strings.Cut(string(k), ".")
	seq, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return id, 0, false
	}
	id, err = uuid.Parse(text)
	return id, seq, err == nil && MakeKey(id, seq) == k
}

// Lane is a destination that waiting records share: a work queue, or where a policy or a person forwards those of a
// work queue. An unreachable lane delays no other. (The queues redrive.lane.<queue> in RabbitMQ are something else:
// wire.LaneQueue.)
type Lane struct {
	Queue string // the work queue
	// Forward is where its messages go instead; zero: back to the queue.
	Forward Destination
}

func (r *Record) Lane() Lane {
	l := Lane{Queue: r.Queue}
	if r.Forward != nil {
		l.Forward = *r.Forward
	}
	return l
}

// Forwards reports whether the lane leads to a forward target rather than a work queue.
func (l Lane) Forwards() bool { return l.Forward != Destination{} }

func (l Lane) String() string {
	if !l.Forwards() {
		return l.Queue
	}
	return fmt.Sprintf("%s to %s", l.Queue, l.Forward)
}

func (d Destination) String() string {
	switch {
	case d.Exchange == "":
		return "queue " + d.RoutingKey
	case d.RoutingKey == "":
		return "exchange " + d.Exchange
	}
	return fmt.Sprintf("exchange %s with routing key %s", d.Exchange, d.RoutingKey)
}

type Reasons uint8

// reasons lists the reasons with a bit of their own. The order is on disk. All others, which
// no RabbitMQ gives today, share the last bit.
var reasons = []string{wire.ReasonRejected, wire.ReasonExpired, wire.ReasonMaxLen, wire.ReasonDeliveryLimit,
	wire.ReasonReported}

const otherReasons Reasons = 1 << 7

func ReasonsOf(reason string) Reasons {
	if i := slices.Index(reasons, reason); i >= 0 {
		return 1 << i
	}
	return otherReasons
}

// Names returns the reasons in the set, or nil when they are not known.
func (s Reasons) Names() (names []string) {
	if s&otherReasons != 0 {
		return nil
	}
	for i, name := range reasons {
		if s&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}
