package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/errorgroup"
)

// AppendTexts appends texts, each with its length in front.
func AppendTexts(b []byte, texts ...string) []byte {
	for _, s := range texts {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}

// ReadTexts reads what AppendTexts wrote, and returns what follows; ok is false when it is cut
// short or damaged.
func ReadTexts(b []byte, into ...*string) (rest []byte, ok bool) {
	d := &decoder{data: b, text: string(b)}
	for _, s := range into {
		*s = d.string()
	}
	return d.data, !d.torn
}

// AppendPastFailure appends what is left of a record.
func AppendPastFailure(b []byte, p PastFailure) []byte {
	b = append(append(b, byte(p.Ending)), p.ID[:]...)
	b = AppendTexts(b, p.Queue, p.Reason, p.Error, p.Policy)
	b = binary.AppendVarint(b, int64(p.Failures))
	for _, at := range [...]time.Time{p.FailedAt, p.Due, p.Ended} {
		b = binary.AppendVarint(b, at.UnixMicro())
	}
	return b
}

// ReadPastFailure reads what AppendPastFailure wrote.
func ReadPastFailure(text string) (p PastFailure, err error) {
	d := &decoder{data: []byte(text), text: text}
	p.Ending = Ending(d.byte())
	copy(p.ID[:], d.take(len(p.ID)))
	for _, s := range [...]*string{&p.Queue, &p.Reason, &p.Error, &p.Policy} {
		*s = d.string()
	}
	p.Failures = int(d.varint())
	for _, at := range [...]*time.Time{&p.FailedAt, &p.Due, &p.Ended} {
		*at = FromMicros(d.varint())
	}
	if d.torn {
		return p, fmt.Errorf("what ended: %w", ErrTorn)
	}
	return p, nil
}

// AppendGroup appends what the members of a group share, all but its ID.
func AppendGroup(b []byte, g errorgroup.Group) []byte {
	return AppendTexts(b, g.Queue, g.Reason, g.Pattern, g.Type)
}

// ReadGroup reads what AppendGroup wrote.
func ReadGroup(id errorgroup.ID, b []byte) (errorgroup.Group, error) {
	g := errorgroup.Group{ID: id}
	if _, ok := ReadTexts(b, &g.Queue, &g.Reason, &g.Pattern, &g.Type); !ok {
		return g, fmt.Errorf("what the members of group %s share is damaged", id)
	}
	return g, nil
}

// GroupNotes are what people have noted of groups, by ID.
func GroupNotes(ctx context.Context, s Changer) (map[string]string, error) {
	notes := map[string]string{}
	return notes, s.Entries(ctx, "group/", "", func(e Entry) (bool, error) {
		if id, ok := strings.CutSuffix(strings.TrimPrefix(e.Name, "group/"), "/note"); ok {
			notes[id] = string(e.Value)
		}
		return true, nil
	})
}

// Minute is the time of a minute since 1970; 0 is the zero time.
func Minute(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(n*60, 0)
}

// FromMicros is the time of microseconds since 1970, and keeps the zero time.
func FromMicros(n int64) time.Time {
	if n == (time.Time{}).UnixMicro() {
		return time.Time{}
	}
	return time.UnixMicro(n)
}
