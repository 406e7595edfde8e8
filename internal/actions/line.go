package actions

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

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
	Reason      text         `json:"reason,omitzero"`
	Error       text         `json:"error,omitzero"`
	Policy      text         `json:"policy,omitzero"`
	FirstFailed moment       `json:"first_failed,omitzero"`
	FailedAt    moment       `json:"failed,omitzero"`
	ParkedFor   text         `json:"parked_for,omitzero"`
	Notes       []text       `json:"notes,omitempty"`
	Proven      bool         `json:"proven,omitempty"`
	Forward     *destination `json:"forward,omitempty"`
	MadeFrom    uuid.UUID    `json:"made_from,omitzero"`
	MadeInto    uuid.UUID    `json:"made_into,omitzero"`
	Fingerprint []byte       `json:"fingerprint,omitempty"`
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
	Body            []byte       `json:"body"` // base64
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
	m := &r.Message
	x := &exportedRecord{Format: exportFormat, ID: r.ID, Queue: text(r.Queue), State: inspect.StateName(r.State),
		Due: moment(r.Due), Attempt: r.Failures,
		Reason: text(r.Reason), Error: text(r.Error), Policy: text(r.Policy), FirstFailed: moment(r.FirstFailed), FailedAt: moment(r.FailedAt),
		ParkedFor: text(r.ParkedFor), Proven: r.Proven, MadeFrom: r.MadeFrom, MadeInto: r.MadeInto,
		Message: message{Exchange: text(m.Exchange), RoutingKey: text(m.RoutingKey), ContentType: text(m.ContentType),
			ContentEncoding: text(m.ContentEncoding), DeliveryMode: m.DeliveryMode, Priority: m.Priority, CorrelationID: text(m.CorrelationID),
			ReplyTo: text(m.ReplyTo), Expiration: text(m.Expiration), MessageID: text(m.MessageID), Timestamp: moment(m.Timestamp),
			Type: text(m.Type), UserID: text(m.UserID), AppID: text(m.AppID), Body: m.Body}}
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
	if m.Headers != nil {
		x.Message.Headers = &headerTable{m.Headers}
	}
	return x
}

// mostFailures is how often a message can have failed: once more than its header may say.
const mostFailures = wire.MaxAttempt + 1

// parseLine reads what appendLine wrote.
func parseLine(b []byte) (*store.Record, error) {
	var x exportedRecord
	if err := strictly(b, &x); err != nil {
		return nil, err
	}
	if x.Format != exportFormat {
		return nil, fmt.Errorf(`"redrive" is %d: this version reads lines of format %d`, x.Format, exportFormat)
	}
	r := &store.Record{ID: x.ID, Queue: string(x.Queue), Due: time.Time(x.Due), Failures: x.Attempt, Reason: string(x.Reason), Error: string(x.Error),
		Policy: string(x.Policy), FirstFailed: time.Time(x.FirstFailed), FailedAt: time.Time(x.FailedAt), ParkedFor: string(x.ParkedFor),
		Proven: x.Proven, MadeFrom: x.MadeFrom, MadeInto: x.MadeInto}
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
	case x.Attempt < 0 || x.Attempt > mostFailures:
		return nil, fmt.Errorf(`"attempt" is %d: expected 0 to %d`, x.Attempt, mostFailures)
	}
	copy(r.Fingerprint[:], x.Fingerprint)
	for _, n := range x.Notes {
		r.Notes = append(r.Notes, string(n))
	}
	if x.Forward != nil {
		r.Forward = &store.Destination{Exchange: string(x.Forward.Exchange), RoutingKey: string(x.Forward.RoutingKey)}
	}
	m := x.Message
	r.Message = wire.Message{Exchange: string(m.Exchange), RoutingKey: string(m.RoutingKey), ContentType: string(m.ContentType),
		ContentEncoding: string(m.ContentEncoding), DeliveryMode: m.DeliveryMode, Priority: m.Priority, CorrelationID: string(m.CorrelationID),
		ReplyTo: string(m.ReplyTo), Expiration: string(m.Expiration), MessageID: string(m.MessageID), Timestamp: time.Time(m.Timestamp),
		Type: string(m.Type), UserID: string(m.UserID), AppID: string(m.AppID)}
	if m.Headers != nil {
		r.Message.Headers = m.Headers.table
	}
	if len(m.Body) > 0 {
		r.Message.Body = m.Body
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
