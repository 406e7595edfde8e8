package actions

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

const (
	importBatch = 1000
	importBytes = 2 << 20
	// longLine is the length from which on a line is read only while nothing else of Config.Large is.
	longLine = 1 << 20
	// maxLineLen holds the largest body that RabbitMQ takes by default, 128 MiB, in
	// base64, and its headers.
	maxLineLen = 192 << 20
	// maxNameLen is RabbitMQ's limit for names of queues and exchanges, and routing
	// keys, in bytes.
	maxNameLen = 255
)

// Imported is the result of an import.
type Imported struct {
	Count  int64            `json:"count" doc:"Messages that are parked now; with dry_run: that would be."`
	Queues map[string]int64 `json:"queues" doc:"How many of each queue."`
	// Already are left out: the same messages were imported before.
	Already int64 `json:"already,omitempty" doc:"Messages that were imported before, and are skipped."`
	// Kept are left out, since a replay of both would send them twice.
	Kept int64 `json:"kept,omitempty" doc:"Messages that still wait or are parked here, and are skipped."`
}

// ImportOptions are how an import is made.
type ImportOptions struct {
	DryRun bool // only check all lines
	// AsIs keeps the messages with id, state, attempts and times as they are, to move a store. What
	// waits is retried when it is due, to the queue that the file says, so only an administrator may.
	AsIs bool
	// EvenIfKept also imports messages whose originals wait or are parked here.
	EvenIfKept bool
}

func (o ImportOptions) role() auth.Role {
	if o.AsIs {
		return auth.Admin
	}
	return auth.Editor
}

// Import parks what Export wrote: new messages, with new ids, that say which ones they were made
// from. A message that was imported before is left out, so an import that was cut short can be
// repeated; so is one that waits or is parked here, unless o.EvenIfKept. An error names the line;
// batches before it are kept, and Imported says how many messages they have.
func (a *Actions) Import(ctx context.Context, by auth.Caller, r io.Reader, o ImportOptions) (Imported, error) {
	im := Imported{Queues: map[string]int64{}}
	did := "import"
	if o.AsIs {
		did = "import as is"
	}
	if err := a.Permit(by, o.role(), did, ""); err != nil {
		return im, err
	}
	if o.DryRun {
		err := a.readLines(ctx, by, r, o, func(records []*store.Record) error {
			records, err := a.notImported(ctx, &im, records, o)
			im.add(records)
			return err
		})
		return im, err
	}
	end, err := a.Begin(by, did, "", 0, "")
	if err != nil {
		return im, err
	}
	err = a.readLines(ctx, by, r, o, func(records []*store.Record) error {
		records, err := a.notImported(ctx, &im, records, o)
		if err != nil || len(records) == 0 {
			return err
		}
		var carried []store.Entry
		for _, r := range records {
			carried = append(carried, carry(r, store.Edit{Keep: true}, nil, a.now())...)
		}
		if len(carried) > 0 {
			if err := a.Store.PutEntries(context.WithoutCancel(ctx), carried); err != nil {
				return err
			}
		}
		if err := a.Store.Add(context.WithoutCancel(ctx), records); err != nil {
			return err
		}
		im.add(records)
		return nil
	})
	if err != nil && im.Count > 0 {
		err = fmt.Errorf("%w (the first %d messages are imported)", err, im.Count)
	}
	for _, q := range slices.Sorted(maps.Keys(im.Queues)) {
		a.event(retry.Event{Kind: retry.Imported, Queue: q, N: int(im.Queues[q]), By: by.Name})
	}
	end(err, im.Count)
	return im, err
}

func (im *Imported) add(records []*store.Record) {
	im.Count += int64(len(records))
	for _, r := range records {
		im.Queues[r.Queue]++
	}
}

// failure identifies a failure of a message.
type failure struct {
	id    uuid.UUID
	queue string
	at    int64
}

// notImported returns the records to import: those that were not imported before, whatever became of them since, and
// whose originals are gone.
func (a *Actions) notImported(
	ctx context.Context, im *Imported, records []*store.Record, o ImportOptions,
) (left []*store.Record, err error) {
	of := func(id uuid.UUID, queue string, at time.Time) failure {
		if !o.AsIs { // its id was made for this line
			return failure{id: id}
		}
		return failure{id, queue, at.UnixMicro()}
	}
	seen := map[failure]bool{}
	for _, r := range records {
		kept, err := a.Store.Find(ctx, r.ID)
		if err != nil {
			return nil, err
		}
		for _, l := range kept {
			seen[of(l.Record.ID, l.Record.Queue, l.Record.FailedAt)] = true
		}
		past, err := a.Store.PastFailures(ctx, r.ID)
		if err != nil {
			return nil, err
		}
		for _, p := range past {
			seen[of(p.ID, p.Queue, p.FailedAt)] = true
		}
		is := of(r.ID, r.Queue, r.FailedAt)
		if seen[is] {
			im.Already++
			continue
		}
		seen[is] = true
		if !o.AsIs && !o.EvenIfKept {
			originals, err := a.Store.Find(ctx, r.MadeFrom)
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(originals, func(l store.Listed) bool {
				return l.Record.State == store.Waiting || l.Record.State == store.Parked
			}) {
				im.Kept++
				continue
			}
		}
		left = append(left, r)
	}
	return left, nil
}

// readLines passes the records of an export to keep, a batch of checked lines at a time.
func (a *Actions) readLines(
	ctx context.Context, by auth.Caller, from io.Reader, o ImportOptions, keep func([]*store.Record) error,
) error {
	in := bufio.NewReaderSize(from, 64<<10)
	var batch []*store.Record
	size, leave := 0, func() {} // Config.Large
	defer func() { leave() }()
	flush := func() (err error) {
		if len(batch) > 0 {
			err = keep(batch)
		}
		batch, size = nil, 0
		leave()
		leave = func() {}
		return errors.Join(err, ctx.Err())
	}
	enter := func() error {
		if err := flush(); err != nil {
			return err
		}
		left, err := a.Large.Enter(ctx, by.ID(), a.Large.All)
		if err == nil {
			leave = left
		}
		return err
	}
	for n := 1; ; n++ {
		line, err := readLine(in, enter)
		if err != nil && err != io.EOF {
			return fmt.Errorf("line %d: %w", n, err)
		}
		ended := err == io.EOF
		if line = bytes.TrimSpace(line); len(line) > 0 {
			r, err := a.importLine(by, line, o)
			if err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
			batch = append(batch, r)
			size += len(line)
		}
		if ended || len(batch) >= importBatch || size >= importBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
	}
}

// readLine calls long before it reads more than longLine. It keeps pieces, and joins them once: a
// slice that grows would be held twice.
func readLine(in *bufio.Reader, long func() error) ([]byte, error) {
	var pieces [][]byte
	size, entered := 0, false
	for {
		piece, err := in.ReadSlice('\n')
		size += len(piece)
		if size > longLine && !entered {
			if err := long(); err != nil {
				return nil, err
			}
			entered = true
		}
		switch {
		case size > maxLineLen:
			return nil, fmt.Errorf("%w: it is longer than %d MiB", inspect.ErrInvalid, maxLineLen>>20)
		case err != bufio.ErrBufferFull && pieces == nil:
			return bytes.Clone(piece), err
		}
		pieces = append(pieces, bytes.Clone(piece))
		if err != bufio.ErrBufferFull {
			return bytes.Join(pieces, nil), err
		}
	}
}

// importLine makes a record of a line. A file proves nothing, not that RabbitMQ dead-lettered it, nor
// that a policy sent it elsewhere, so it is parked, unless an administrator imports it as it is.
func (a *Actions) importLine(by auth.Caller, line []byte, o ImportOptions) (*store.Record, error) {
	r, err := ReadExported(line)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", inspect.ErrInvalid, err)
	}
	r.Imported = true
	m := &r.Message
	switch {
	case r.Queue == "" || len(r.Queue) > maxNameLen || !utf8.ValidString(r.Queue) || wire.OwnQueue(r.Queue):
		return nil, fmt.Errorf("%w: %q is not a work queue", inspect.ErrInvalid, r.Queue)
	case len(m.Exchange) > maxNameLen || len(m.RoutingKey) > maxNameLen:
		return nil, fmt.Errorf("%w: its exchange or routing key is longer than %d bytes", inspect.ErrInvalid,
			maxNameLen)
	}
	if err := by.May(o.role(), r.Queue); err != nil {
		return nil, err
	}
	if o.AsIs {
		return r, valid(r)
	}
	// The same line gets the same id, so that a repeated import recognizes it.
	same, err := appendLine(nil, r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", inspect.ErrInvalid, err)
	}
	sent := retry.Unwrapped(r)
	id := headers.BindID(uuid.NewHash(sha256.New(), importedIDs, same, 8), &sent)
	if was := r.State; was == store.Parked && r.ParkedFor != "" {
		r.Notes = append(r.Notes, "before it was imported it was parked: "+r.ParkedFor)
	} else {
		r.Notes = append(r.Notes, "before it was imported it was "+inspect.StateName(was))
	}
	if names := unproven(m); len(names) > 0 {
		r.Notes = append(r.Notes, "the file says so, not RabbitMQ: "+strings.Join(names, ", "))
	}
	now := a.now()
	r.MadeFrom, r.MadeInto, r.ID = r.ID, uuid.Nil, id
	r.State, r.Due, r.ParkedFor = store.Parked, now, "imported by "+by.Name
	r.Forward, r.Proven, r.Fingerprint = nil, false, [16]byte{}
	for _, at := range []*time.Time{&r.FirstFailed, &r.FailedAt} {
		if at.IsZero() || at.After(now) {
			*at = now
		}
	}
	return r, valid(r)
}

func valid(r *store.Record) error {
	if _, err := store.AppendRecord(nil, r); err != nil {
		return fmt.Errorf("%w: %w", inspect.ErrInvalid, err)
	}
	return nil
}

// importedIDs is the name space of the ids of imported messages.
var importedIDs = uuid.MustParse("6f2b8a53-9a0e-4f0f-8f0e-0d5f7c1e2a44")

// unproven names the headers and properties that consumers believe RabbitMQ or Redrive has set:
// of an import, only the file says so.
func unproven(m *wire.Message) (names []string) {
	if m.UserID != "" {
		names = append(names, fmt.Sprintf("user_id %.100q", m.UserID))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		if strings.HasPrefix(name, "x-redrive-") || name == "x-death" || strings.HasPrefix(name, "x-first-death-") ||
			strings.HasPrefix(name, "x-last-death-") {
			names = append(names, name)
		}
	}
	return names
}

// Export writes all that a query finds, a line of JSON each, as it was to the last
// byte: see exportedRecord. It returns how many it wrote.
func (a *Actions) Export(ctx context.Context, by auth.Caller, text string, w io.Writer) (n int64, err error) {
	if err := a.Permit(by, auth.Viewer, "export", text); err != nil {
		return 0, err
	}
	if err := a.Inspect.Whole(by); err != nil {
		a.refused(by, "export", text, err)
		return 0, err
	}
	if _, err := query.Parse(text); err != nil {
		return 0, err
	}
	end, err := a.Begin(by, "export", text, 0, "")
	if err != nil {
		return 0, err
	}
	defer func() { end(err, n) }()
	out := bufio.NewWriterSize(w, 64<<10)
	lines := json.NewEncoder(out)
	hold := func() (func(), error) { return a.Large.Enter(ctx, by.ID(), 1) }
	err = a.Inspect.FindWithBodies(ctx, by, text, hold, func(l store.Listed) error {
		if err := lines.Encode(exportedOf(l.Record)); err != nil {
			return fmt.Errorf("message %s: %w", l.Record.ID, err)
		}
		n++
		return nil
	})
	if err == nil {
		err = out.Flush()
	}
	return n, err
}

// exportedRecord is a record as a line of an export: every field of it, and exactly. What
// a person should be able to read is readable; what JSON cannot hold (bytes, text
// that is not UTF-8, times beyond the year 9999) is written so that it comes back
// as it was. See text, moment and headers.
type exportedRecord struct {
	Format      int          `json:"redrive"` // exportFormat
	ID          uuid.UUID    `json:"id"`
	Queue       text         `json:"queue"`
	State       string       `json:"state"`
	Due         moment       `json:"due"`
	Attempt     int          `json:"attempt"`
	Replays     int          `json:"replays,omitempty"`
	Reason      text         `json:"reason,omitzero"`
	Error       text         `json:"error,omitzero"`
	Policy      text         `json:"policy,omitzero"`
	Rule        text         `json:"rule,omitzero"`
	Notify      store.Notify `json:"notify,omitzero"`
	FirstFailed moment       `json:"first_failed,omitzero"`
	FailedAt    moment       `json:"failed,omitzero"`
	ParkedFor   text         `json:"parked_for,omitzero"`
	Notes       []text       `json:"notes,omitempty"`
	Proven      bool         `json:"proven,omitempty"`
	Forward     *destination `json:"forward,omitempty"`
	MadeFrom    uuid.UUID    `json:"made_from,omitzero"`
	MadeInto    uuid.UUID    `json:"made_into,omitzero"`
	Fingerprint []byte       `json:"fingerprint,omitempty"`
	AdoptedFrom text         `json:"adopted_from,omitzero"`
	AdoptedAs   text         `json:"adopted_as,omitzero"` // store.Record.Format
	Envelope    *message     `json:"envelope,omitempty"`  // its body is the message's
	Message     message      `json:"message"`
}

// exportFormat is the version of the lines. A later one must read the earlier ones too.
const exportFormat = 1

type destination struct {
	Exchange   text `json:"exchange"`
	RoutingKey text `json:"routing_key"`
}

type message struct {
	Exchange        text         `json:"exchange"`
	RoutingKey      text         `json:"routing_key"`
	ContentType     text         `json:"content_type,omitzero"`
	ContentEncoding text         `json:"content_encoding,omitzero"`
	DeliveryMode    uint8        `json:"delivery_mode,omitempty"`
	Priority        uint8        `json:"priority,omitempty"`
	CorrelationID   text         `json:"correlation_id,omitzero"`
	ReplyTo         text         `json:"reply_to,omitzero"`
	Expiration      text         `json:"expiration,omitzero"`
	MessageID       text         `json:"message_id,omitzero"`
	Timestamp       moment       `json:"timestamp,omitzero"`
	Type            text         `json:"type,omitzero"`
	UserID          text         `json:"user_id,omitzero"`
	AppID           text         `json:"app_id,omitzero"`
	Headers         *headerTable `json:"headers,omitempty"`
	Body            []byte       `json:"body"` // base64; null: none
}

// text is a string; one that is not valid UTF-8 is {"base64": "…"}.
type text string

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(map[string][]byte{"base64": []byte(t)})
}

func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) == 0 || b[0] != '{' {
		return json.Unmarshal(b, (*string)(t))
	}
	var raw struct {
		Base64 *string `json:"base64"`
	}
	if err := strictly(b, &raw); err != nil || raw.Base64 == nil {
		return fmt.Errorf(`a text is a string or {"base64": "…"}, not %.60s`, b)
	}
	data, err := base64.StdEncoding.DecodeString(*raw.Base64)
	*t = text(data)
	return err
}

// moment is a time to the microsecond, as RFC 3339 where that can hold it and else
// as "@seconds.micros" of Unix.
type moment time.Time

func (m moment) IsZero() bool { return time.Time(m).IsZero() }

func (m moment) MarshalText() ([]byte, error) {
	t := time.Time(m).UTC()
	if m.IsZero() {
		return nil, nil
	}
	if y := t.Year(); y < 0 || y > 9999 {
		return fmt.Appendf(nil, "@%d.%06d", t.Unix(), t.Nanosecond()/1000), nil
	}
	return []byte(t.Truncate(time.Microsecond).Format(time.RFC3339Nano)), nil
}

func (m *moment) UnmarshalText(b []byte) error {
	*m = moment{}
	if len(b) == 0 {
		return nil
	}
	if b[0] != '@' {
		t, err := time.Parse(time.RFC3339Nano, string(b))
		*m = moment(t.Truncate(time.Microsecond))
		return err
	}
	whole, micros, _ := bytes.Cut(b[1:], []byte("."))
	sec, err := strconv.ParseInt(string(whole), 10, 64)
	us, err2 := strconv.ParseUint(string(micros), 10, 32)
	if err != nil || err2 != nil || us >= 1e6 {
		return fmt.Errorf("%.60q is not a time", b)
	}
	*m = moment(time.Unix(sec, int64(us)*1000))
	return nil
}

// appendLine appends a record as one line, its end included.
func appendLine(dst []byte, r *store.Record) ([]byte, error) {
	b, err := json.Marshal(exportedOf(r))
	if err != nil {
		return dst, fmt.Errorf("message %s: %w", r.ID, err)
	}
	return append(append(dst, b...), '\n'), nil
}

func exportedOf(r *store.Record) *exportedRecord {
	x := &exportedRecord{Format: exportFormat, ID: r.ID, Queue: text(r.Queue), State: inspect.StateName(r.State),
		Due: moment(r.Due), Attempt: r.Failures, Replays: r.Replays,
		Reason: text(r.Reason), Error: text(r.Error), Policy: text(r.Policy), Rule: text(r.Rule), Notify: r.Notify,
		FirstFailed: moment(r.FirstFailed), FailedAt: moment(r.FailedAt),
		ParkedFor: text(r.ParkedFor), Proven: r.Proven, MadeFrom: r.MadeFrom, MadeInto: r.MadeInto,
		AdoptedFrom: text(r.AdoptedFrom), AdoptedAs: text(r.Format), Message: exportedMessage(&r.Message)}
	if r.Envelope != nil {
		envelope := exportedMessage(r.Envelope)
		x.Envelope = &envelope
	}
	if x.Message.Body == nil {
		x.Message.Body = []byte{}
	}
	if r.Fingerprint != [16]byte{} {
		x.Fingerprint = r.Fingerprint[:]
	}
	for _, n := range r.Notes {
		x.Notes = append(x.Notes, text(n))
	}
	if r.Forward != nil {
		x.Forward = &destination{text(r.Forward.Exchange), text(r.Forward.RoutingKey)}
	}
	return x
}

func exportedMessage(m *wire.Message) message {
	x := message{Exchange: text(m.Exchange), RoutingKey: text(m.RoutingKey), ContentType: text(m.ContentType),
		ContentEncoding: text(m.ContentEncoding), DeliveryMode: m.DeliveryMode, Priority: m.Priority,
		CorrelationID: text(m.CorrelationID), ReplyTo: text(m.ReplyTo), Expiration: text(m.Expiration),
		MessageID: text(m.MessageID), Timestamp: moment(m.Timestamp), Type: text(m.Type), UserID: text(m.UserID),
		AppID: text(m.AppID), Body: m.Body}
	if m.Headers != nil {
		x.Headers = &headerTable{m.Headers}
	}
	return x
}

// read returns the message that exportedMessage was given.
func (m *message) read() wire.Message {
	r := wire.Message{Exchange: string(m.Exchange), RoutingKey: string(m.RoutingKey),
		ContentType: string(m.ContentType), ContentEncoding: string(m.ContentEncoding),
		DeliveryMode: m.DeliveryMode, Priority: m.Priority, CorrelationID: string(m.CorrelationID),
		ReplyTo: string(m.ReplyTo), Expiration: string(m.Expiration), MessageID: string(m.MessageID),
		Timestamp: time.Time(m.Timestamp), Type: string(m.Type), UserID: string(m.UserID), AppID: string(m.AppID)}
	if m.Headers != nil {
		r.Headers = m.Headers.table
	}
	if len(m.Body) > 0 {
		r.Body = m.Body
	}
	return r
}

// maxFailures is how often a message can have failed: once more than its header may say.
const maxFailures = wire.MaxAttempt + 1

// ReadExported reads a line of an export, without its line end.
func ReadExported(b []byte) (*store.Record, error) {
	var x exportedRecord
	if err := strictly(b, &x); err != nil {
		return nil, err
	}
	if x.Format != exportFormat {
		return nil, fmt.Errorf(`"redrive" is %d: this version reads lines of format %d`, x.Format, exportFormat)
	}
	r := &store.Record{ID: x.ID, Queue: string(x.Queue), Due: time.Time(x.Due), Failures: x.Attempt, Replays: x.Replays,
		Reason: string(x.Reason), Error: string(x.Error), Policy: string(x.Policy), Rule: string(x.Rule),
		Notify: min(x.Notify, store.Never), FirstFailed: time.Time(x.FirstFailed), FailedAt: time.Time(x.FailedAt),
		ParkedFor: string(x.ParkedFor),
		Proven:    x.Proven, MadeFrom: x.MadeFrom, MadeInto: x.MadeInto}
	for _, s := range []store.State{store.Waiting, store.Parked, store.Discarded} {
		if x.State == inspect.StateName(s) {
			r.State = s
		}
	}
	switch {
	case r.State == 0:
		return nil, fmt.Errorf(`"state" is %.40q: expected waiting, parked or discarded`, x.State)
	case len(x.Fingerprint) != 0 && len(x.Fingerprint) != len(r.Fingerprint):
		return nil, fmt.Errorf(`"fingerprint" has %d bytes: expected %d`, len(x.Fingerprint), len(r.Fingerprint))
	case x.Attempt < 0 || x.Attempt > maxFailures:
		return nil, fmt.Errorf(`"attempt" is %d: expected 0 to %d`, x.Attempt, maxFailures)
	case x.Replays < 0 || x.Replays > wire.MaxAttempt:
		return nil, fmt.Errorf(`"replays" is %d: expected 0 to %d`, x.Replays, wire.MaxAttempt)
	}
	r.AdoptedFrom = string(x.AdoptedFrom)
	copy(r.Fingerprint[:], x.Fingerprint)
	for _, n := range x.Notes {
		r.Notes = append(r.Notes, string(n))
	}
	if x.Forward != nil {
		r.Forward = &store.Destination{Exchange: string(x.Forward.Exchange), RoutingKey: string(x.Forward.RoutingKey)}
	}
	r.Message = x.Message.read()
	if r.Format = string(x.AdoptedAs); x.Envelope != nil {
		envelope := x.Envelope.read()
		r.Envelope = &envelope
		r.Envelope.Body = nil
	}
	return r, nil
}

// strictly decodes JSON and refuses unknown names: otherwise a field with a typing error would be
// lost unnoticed.
func strictly(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return fmt.Errorf("more follows the JSON object: expected one in a line")
	}
	return nil
}

// headerTable has header values as JSON, each with the name of its AMQP type, so that
// they come back with the very type they had: a list, sorted by name, of
// {"name": …, "type": …, "value": …}; in an array the names are left out.
type headerTable struct{ table amqp.Table }

type typed struct {
	Name  *text           `json:"name,omitempty"`
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value,omitempty"`
}

// maxJSONDepth bounds tables written as nested JSON, since each level is parsed again for every level around
// it. Deeper ones, which only an attacker makes, are packed: in the store's encoding, as base64.
const maxJSONDepth = 50

const kindPacked = "packed"

// packed is a value as a store keeps it.
func packed(v any) (typed, error) {
	b, err := store.AppendRecord(nil, &store.Record{Message: wire.Message{Headers: amqp.Table{"": v}}})
	if err != nil {
		return typed{}, err
	}
	raw, err := json.Marshal(b)
	return typed{Type: kindPacked, Value: raw}, err
}

func unpacked(v typed) (any, error) {
	b, err := valueAs[[]byte](v)
	if err != nil {
		return nil, err
	}
	r, _, err := store.DecodeRecord(b, false)
	if err != nil {
		return nil, err
	}
	return r.Message.Headers[""], nil
}

func (h *headerTable) MarshalJSON() ([]byte, error) {
	list, err := fromTable(h.table, 0)
	if err != nil {
		return nil, err
	}
	return json.Marshal(list)
}

func (h *headerTable) UnmarshalJSON(b []byte) (err error) {
	h.table, err = toTable(b, 0)
	return err
}

func fromTable(t amqp.Table, depth int) ([]typed, error) {
	list := make([]typed, 0, len(t))
	for _, k := range slices.Sorted(maps.Keys(t)) {
		v, err := fromValue(t[k], depth+1)
		if err != nil {
			return nil, fmt.Errorf("header %.100q: %w", k, err)
		}
		name := text(k)
		v.Name = &name
		list = append(list, v)
	}
	return list, nil
}

func fromValue(v any, depth int) (typed, error) {
	var value any
	kind := inspect.TypeName(v)
	switch v := v.(type) {
	case nil:
		return typed{Type: kind}, nil
	case bool, int8, uint8, int16, uint16, int32, uint32, []byte:
		value = v
	case int64: // as text: many readers of JSON have no whole 64 bits
		value = strconv.FormatInt(v, 10)
	case float32:
		value = fromFloat(float64(v), 32, uint64(math.Float32bits(v)))
	case float64:
		value = fromFloat(v, 64, math.Float64bits(v))
	case amqp.Decimal:
		value = fmt.Sprintf("%d/%d", v.Value, v.Scale)
	case string:
		value = text(v)
	case time.Time: // whole seconds, of any year
		value = strconv.FormatInt(v.Unix(), 10)
	case amqp.Table:
		if depth > maxJSONDepth {
			return packed(v)
		}
		list, err := fromTable(v, depth)
		if err != nil {
			return typed{}, err
		}
		value = list
	case []any:
		if depth > maxJSONDepth {
			return packed(v)
		}
		list := make([]typed, 0, len(v))
		for _, e := range v {
			x, err := fromValue(e, depth+1)
			if err != nil {
				return typed{}, err
			}
			list = append(list, x)
		}
		value = list
	default:
		return typed{}, fmt.Errorf("AMQP has no type for a Go %T", v)
	}
	raw, err := json.Marshal(value)
	return typed{Type: kind, Value: raw}, err
}

// fromFloat writes infinities and NaNs, of which there are many, by their bits: JSON has no
// numbers for them.
func fromFloat(v float64, size int, bits uint64) any {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Sprintf("bits:%x", bits)
	}
	return json.RawMessage(strconv.AppendFloat(nil, v, 'g', -1, size))
}

func toTable(b []byte, depth int) (amqp.Table, error) {
	var list []typed
	if err := strictly(b, &list); err != nil {
		return nil, err
	}
	t := make(amqp.Table, len(list))
	for _, v := range list {
		if v.Name == nil {
			return nil, fmt.Errorf("a header has no name")
		}
		name := string(*v.Name)
		if _, twice := t[name]; twice {
			return nil, fmt.Errorf("header %.100q is there twice", name)
		}
		value, err := toValue(v, depth+1)
		if err != nil {
			return nil, fmt.Errorf("header %.100q: %w", name, err)
		}
		t[name] = value
	}
	return t, nil
}

func toValue(v typed, depth int) (any, error) {
	if depth > maxJSONDepth+1 {
		return nil, fmt.Errorf("nested more than %d deep", maxJSONDepth)
	}
	if scalar := scalars[v.Type]; scalar != nil {
		return scalar(v)
	}
	switch v.Type {
	case kindPacked:
		return unpacked(v)
	case "void":
		return nil, nil
	case "bytes":
		b, err := valueAs[[]byte](v)
		if err == nil && b == nil {
			b = []byte{}
		}
		return b, err
	case "string":
		s, err := valueAs[text](v)
		return string(s), err
	case "table":
		return toTable(v.Value, depth)
	case "array":
		list, err := valueAs[[]typed](v)
		values := make([]any, 0, len(list))
		for _, e := range list {
			x, err := toValue(e, depth+1)
			if err != nil {
				return nil, err
			}
			values = append(values, x)
		}
		return values, err
	case "float32", "float64":
		return toFloat(v)
	case "int64", "timestamp", "decimal":
		return toNumber(v)
	}
	return nil, fmt.Errorf("%.40q is not a type of AMQP's", v.Type)
}

// scalars read values that JSON has, too.
var scalars = map[string]func(typed) (any, error){"bool": scalarAs[bool], "int8": scalarAs[int8],
	"uint8": scalarAs[uint8],
	"int16": scalarAs[int16], "uint16": scalarAs[uint16], "int32": scalarAs[int32], "uint32": scalarAs[uint32]}

func scalarAs[T any](v typed) (any, error) { return valueAs[T](v) }

func valueAs[T any](v typed) (T, error) {
	var x T
	if len(v.Value) == 0 {
		return x, fmt.Errorf("the value is missing")
	}
	return x, strictly(v.Value, &x)
}

func toFloat(v typed) (any, error) {
	size := 64
	if v.Type == "float32" {
		size = 32
	}
	hex, special := strings.CutPrefix(strings.Trim(string(v.Value), `"`), "bits:")
	if special {
		bits, err := strconv.ParseUint(hex, 16, size)
		if size == 32 {
			return math.Float32frombits(uint32(bits)), err
		}
		return math.Float64frombits(bits), err
	}
	f, err := strconv.ParseFloat(string(v.Value), size)
	if size == 32 {
		return float32(f), err
	}
	return f, err
}

// toNumber reads the numbers that are written as text.
func toNumber(v typed) (any, error) {
	s, err := valueAs[string](v)
	if err != nil {
		return nil, err
	}
	if v.Type == "decimal" {
		value, scale, _ := strings.Cut(s, "/")
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			return nil, err
		}
		e, err := strconv.ParseUint(scale, 10, 8)
		return amqp.Decimal{Scale: uint8(e), Value: int32(n)}, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if v.Type == "timestamp" {
		return time.Unix(n, 0), err
	}
	return n, err
}

// fromText reads a text that a person wrote as a value of an AMQP type.
func fromText(kind, s string) (any, error) {
	v := typed{Type: kind, Value: json.RawMessage(s)}
	if kind == "int64" {
		v.Value = json.RawMessage(strconv.Quote(s))
	}
	return toValue(v, 0)
}
