package model

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"
)

const (
	methodFrame, headerFrame, bodyFrame, heartbeatFrame = 1, 2, 3, 8

	frameEnd          = 0xCE
	frameMax          = 131072
	channelMax        = 2047
	smallestFrameMax  = 4096
	heartbeatInterval = 60 // s, unless the client says otherwise
)

// step is how far a connection is.
type step int

const (
	starting step = iota
	tuning
	opening
	opened
	closing // the model has sent connection.close
)

// connection is one client's.
type connection struct {
	b        *Broker
	end      net.Conn
	step     step
	ended    bool
	channels []*channel // by number

	frameMax, channelMax int
	heartbeat            time.Duration
	sent                 bool // since the last heartbeat
	beats                *alarm
	canBeBlocked         bool // the client understands connection.blocked
	blocked              bool // nothing is read from it
}

// run reads frames until the connection ends.
func (c *connection) run() {
	defer c.b.goroutines.Done()
	in := bufio.NewReader(c.end)
	if c.greet(in) {
		for c.next(in) {
		}
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	c.terminate()
}

// greet reads the protocol header.
func (c *connection) greet(in io.Reader) bool {
	var header [8]byte
	if _, err := io.ReadFull(in, header[:]); err != nil {
		return false
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if string(header[:]) != "AMQP\x00\x00\x09\x01" {
		_, _ = c.end.Write([]byte("AMQP\x00\x00\x09\x01")) // the connection ends either way
		return false
	}
	c.send(0, connectionStart, func(w *writer) {
		w.octet(0)
		w.octet(9)
		w.table(table{
			{"capabilities", table{
				{"publisher_confirms", boolean(true)}, {"exchange_exchange_bindings", boolean(true)}, {"basic.nack", boolean(true)},
				{"consumer_cancel_notify", boolean(true)}, {"authentication_failure_close", boolean(true)}, {"per_consumer_qos", boolean(true)}, {"connection.blocked", boolean(true)},
			}},
			{"product", "RabbitMQ"},
			{"version", c.b.options.Version},
		})
		w.longstr("PLAIN")
		w.longstr("en_US")
	})
	return true
}

// next processes one frame; false when the connection has ended.
func (c *connection) next(in io.Reader) bool {
	var head [7]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return false
	}
	kind, number, size := head[0], binary.BigEndian.Uint16(head[1:]), int(binary.BigEndian.Uint32(head[3:]))
	payload := []byte(nil)
	tooLarge := size > c.frameMax // RabbitMQ lets clients exceed the size by the 8 bytes around it
	if !tooLarge {
		payload = make([]byte, size+1)
		if _, err := io.ReadFull(in, payload); err != nil {
			return false
		}
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	defer c.waitUnblocked()
	switch {
	case c.ended:
		return false
	case tooLarge:
		c.fail(faultf(501, "type %d, all octets = <<>>: {frame_too_large,%d,%d}", kind, size, c.frameMax-8), 0)
		return false
	case payload[size] != frameEnd:
		c.fail(faultf(501, "frame ends with %d", payload[size]), 0)
		return false
	}
	c.frame(kind, number, payload[:size])
	return !c.ended
}

func (c *connection) frame(kind byte, number uint16, payload []byte) {
	switch {
	case kind == heartbeatFrame:
	case number == 0:
		r := &reader{b: payload}
		m := method(r.long())
		if f := c.method(m, r); f != nil {
			c.fail(f, m)
		}
	case c.step == closing:
	case c.step != opened:
		c.fail(faultf(504, "channel %d before the connection is open", number), 0)
	default:
		ch, f := c.channel(number)
		if f == nil {
			f = ch.frame(kind, payload)
		}
		if kind != methodFrame {
			c.block()
		}
		if f != nil && (f.hard() || ch == nil) {
			c.fail(f, 0)
		} else if f != nil {
			ch.fail(f)
		}
	}
}

// channel finds or makes one; its first method must open it.
func (c *connection) channel(number uint16) (*channel, *fault) {
	at, found := slices.BinarySearchFunc(c.channels, number, func(ch *channel, n uint16) int { return int(ch.number) - int(n) })
	if found {
		return c.channels[at], nil
	}
	if c.channelMax > 0 && len(c.channels) >= c.channelMax {
		return nil, faultf(530, "number of channels opened (%d) has reached the negotiated channel_max (%d)", len(c.channels), c.channelMax)
	}
	ch := &channel{c: c, number: number}
	c.channels = slices.Insert(c.channels, at, ch)
	return ch, nil
}

// method processes one of the connection's own.
func (c *connection) method(m method, r *reader) *fault {
	switch {
	case m == connectionClose.ok():
		c.terminate()
		return nil
	case m == connectionClose:
		c.release()
		c.send(0, connectionClose.ok(), nil)
		c.terminate()
		return nil
	case c.step == closing:
		return nil
	case m == connectionStart.ok() && c.step == starting:
		return c.authenticate(r)
	case m == connectionTune.ok() && c.step == tuning:
		return c.tune(int(r.short()), int(r.long()), r.short())
	case m == connectionOpen && c.step == opening:
		if vhost := r.shortstr(); vhost != "/" {
			return faultf(530, "vhost %s not found", vhost)
		}
		c.step = opened
		c.send(0, connectionOpen.ok(), func(w *writer) { w.shortstr("") })
		return nil
	}
	return unknown("method %s at this point of a connection", m)
}

func (c *connection) authenticate(r *reader) *fault {
	properties := r.table()
	mechanism, response := r.shortstr(), r.longstr()
	if mechanism != "PLAIN" || response != "\x00guest\x00guest" {
		return unknown("user but guest")
	}
	c.step, c.canBeBlocked = tuning, capable(properties, "connection.blocked")
	c.send(0, connectionTune, func(w *writer) {
		w.short(channelMax)
		w.long(frameMax)
		w.short(heartbeatInterval)
	})
	return nil
}

func capable(properties table, of string) bool {
	value, _ := properties.get("capabilities")
	capabilities, _ := value.(table)
	can, _ := capabilities.get(of)
	return can == boolean(true)
}

func (c *connection) tune(channels, frame int, heartbeat uint16) *fault {
	if channels == 0 || channels > channelMax || frame < smallestFrameMax || frame > frameMax {
		return unknown("tuning to %d channels and frames of %d bytes", channels, frame)
	}
	c.step, c.channelMax, c.frameMax = opening, channels, frame
	if c.heartbeat = time.Duration(heartbeat) * time.Second; c.heartbeat > 0 {
		c.beat()
	}
	return nil
}

// beat sends a heartbeat when nothing else was sent, and again until the connection ends.
func (c *connection) beat() {
	if !c.sent && c.write(heartbeatFrame, 0, nil) != nil {
		c.terminate() // a client of which nothing is read has gone
		return
	}
	c.sent = false
	c.beats = c.b.clock.set(time.Now().Add(c.heartbeat/2), c.beat)
}

// fail sends connection.close; what comes after it is ignored until the client confirms.
func (c *connection) fail(f *fault, m method) {
	if c.step == closing {
		return
	}
	c.step = closing
	c.release()
	c.send(0, connectionClose, func(w *writer) { f.write(w, m) })
}

// terminate ends the connection; what it held is released.
func (c *connection) terminate() {
	if c.ended {
		return
	}
	c.ended = true
	c.b.unblocked.Broadcast()
	c.b.clock.cancel(c.beats)
	c.release()
	_ = c.end.Close() // never fails
	c.b.connections = slices.DeleteFunc(c.b.connections, func(other *connection) bool { return other == c })
}

// release closes the channels.
func (c *connection) release() {
	for _, ch := range c.channels {
		ch.release()
	}
	c.channels = nil
}

func (c *connection) send(number uint16, m method, write func(*writer)) {
	w := &writer{}
	w.long(uint32(m))
	if write != nil {
		write(w)
	}
	_ = c.write(methodFrame, number, w.b) // a client that is gone receives nothing
}

func (c *connection) write(kind byte, number uint16, payload []byte) error {
	w := &writer{b: make([]byte, 0, len(payload)+8)}
	w.octet(kind)
	w.short(number)
	w.long(uint32(len(payload)))
	w.b = append(w.b, payload...)
	w.octet(frameEnd)
	_, err := c.end.Write(w.b)
	c.sent = true
	return err
}

// sendContent writes a method and the message that follows it.
func (c *connection) sendContent(number uint16, m method, write func(*writer), message *content) {
	c.send(number, m, write)
	w := &writer{}
	w.short(basicClass)
	w.short(0)
	w.longlong(uint64(len(message.body)))
	message.write(w)
	_ = c.write(headerFrame, number, w.b)
	for part := range slices.Chunk(message.body, c.frameMax-8) {
		_ = c.write(bodyFrame, number, part)
	}
}

// SetMemoryAlarm is what happens when RabbitMQ has too little memory, or enough again. While
// it has too little it reads nothing more from a connection that publishes.
func (b *Broker) SetMemoryAlarm(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.low = on; on {
		return
	}
	for _, c := range b.connections {
		if c.blocked && !c.ended && c.canBeBlocked {
			c.send(0, connectionUnblock, nil)
		}
		c.blocked = false
	}
	b.unblocked.Broadcast()
}

// block follows a frame of a message: before its next frame nothing is read.
func (c *connection) block() {
	if !c.b.low || c.blocked || c.step != opened {
		return
	}
	c.blocked = true
	if c.canBeBlocked {
		c.send(0, connectionBlocked, func(w *writer) { w.shortstr("low on memory") })
	}
}

// waitUnblocked is called under the broker's lock.
func (c *connection) waitUnblocked() {
	for c.b.low && c.blocked && !c.ended {
		c.b.unblocked.Wait()
	}
}

// fault ends a channel or, when it is hard, its connection.
type fault struct {
	code uint16
	text string
}

var faultNames = map[uint16]string{
	403: "ACCESS_REFUSED", 404: "NOT_FOUND", 406: "PRECONDITION_FAILED", 501: "FRAME_ERROR", 502: "SYNTAX_ERROR",
	504: "CHANNEL_ERROR", 505: "UNEXPECTED_FRAME", 530: "NOT_ALLOWED", 540: "NOT_IMPLEMENTED",
}

func faultf(code uint16, format string, args ...any) *fault {
	return &fault{code, faultNames[code] + " - " + fmt.Sprintf(format, args...)}
}

// unknown refuses what the model does not have, and RabbitMQ perhaps has.
func unknown(format string, args ...any) *fault {
	return faultf(540, "the model of RabbitMQ has no "+format, args...)
}

func (f *fault) hard() bool { return f.code >= 500 }

// write is the content of connection.close and channel.close.
func (f *fault) write(w *writer, m method) {
	w.short(f.code)
	text := f.text
	if len(text) > 255 {
		text = text[:252] + "..."
	}
	w.shortstr(text)
	w.long(uint32(m))
}

// method is the number of a class and of a method in it.
type method uint32

// ok is the answer to a method.
func (m method) ok() method { return m + 1 }

func (m method) String() string { return fmt.Sprintf("%d.%d", m>>16, m&0xffff) }

const (
	basicClass = 60

	connectionStart   method = 10<<16 | 10
	connectionTune    method = 10<<16 | 30
	connectionOpen    method = 10<<16 | 40
	connectionClose   method = 10<<16 | 50
	connectionBlocked method = 10<<16 | 60
	connectionUnblock method = 10<<16 | 61

	channelOpen  method = 20<<16 | 10
	channelClose method = 20<<16 | 40

	exchangeDeclare method = 40<<16 | 10
	exchangeBind    method = 40<<16 | 30

	queueDeclare method = 50<<16 | 10
	queueBind    method = 50<<16 | 20
	queueDelete  method = 50<<16 | 40

	basicQos      method = basicClass<<16 | 10
	basicConsume  method = basicClass<<16 | 20
	basicCancel   method = basicClass<<16 | 30
	basicPublish  method = basicClass<<16 | 40
	basicReturn   method = basicClass<<16 | 50
	basicDeliver  method = basicClass<<16 | 60
	basicGet      method = basicClass<<16 | 70
	basicGetEmpty method = basicClass<<16 | 72
	basicAck      method = basicClass<<16 | 80
	basicReject   method = basicClass<<16 | 90
	basicNack     method = basicClass<<16 | 120

	confirmSelect method = 85<<16 | 10
)

// channel is one channel of a connection.
type channel struct {
	c      *connection
	number uint16
	opened bool

	closing bool // the model has sent channel.close

	incoming  *publishing // a message whose content is arriving
	prefetch  int         // of the consumers to come
	confirms  bool
	published uint64      // since confirm.select
	tag       uint64      // of the last delivery
	unacked   []*delivery // by tag
	flying    []*delivery // of quorum queues, on their way
	consumers []*consumer // oldest first
}

func (ch *channel) frame(kind byte, payload []byte) *fault {
	r := &reader{b: payload}
	switch {
	case kind == methodFrame:
		m := method(r.long())
		switch {
		case ch.closing && m == channelClose.ok():
			ch.remove()
			return nil
		case ch.closing && m == channelClose: // both closed it at once
			ch.send(channelClose.ok(), nil)
			return nil
		case ch.closing:
			return nil
		case !ch.opened && m != channelOpen:
			return faultf(504, "expected 'channel.open'")
		case ch.incoming != nil:
			return faultf(505, "expected content header for class 60, got non content header frame instead")
		}
		ch.landCancelled()
		f := ch.method(m, r)
		if f == nil && r.err != nil {
			f = faultf(502, "method %s: %v", m, r.err)
		}
		return f
	case ch.closing:
		return nil
	case kind == headerFrame && ch.incoming != nil && ch.incoming.content == nil:
		return ch.header(r)
	case kind == bodyFrame && ch.incoming != nil && ch.incoming.content != nil:
		return ch.body(payload)
	}
	return faultf(505, "frame of type %d", kind)
}

func (ch *channel) method(m method, r *reader) *fault {
	switch m >> 16 {
	case 20, 85:
		return ch.own(m, r)
	case 40:
		return ch.exchangeMethod(m, r)
	case 50:
		return ch.queueMethod(m, r)
	case basicClass:
		return ch.basicMethod(m, r)
	}
	return unknown("method %s", m)
}

// own processes the methods of channel and confirm.
func (ch *channel) own(m method, r *reader) *fault {
	switch m {
	case channelOpen:
		ch.opened = true
		ch.send(channelOpen.ok(), func(w *writer) { w.longstr("") })
	case channelClose:
		ch.release()
		ch.send(channelClose.ok(), nil)
		ch.remove()
	case confirmSelect:
		ch.confirms = true
		ch.answer(r.flags().bit(0), confirmSelect.ok(), nil)
	default:
		return unknown("method %s", m)
	}
	return nil
}

func (ch *channel) send(m method, write func(*writer)) { ch.c.send(ch.number, m, write) }

// answer sends what a client waits for, unless it said that it does not.
func (ch *channel) answer(noWait bool, m method, write func(*writer)) {
	if !noWait {
		ch.send(m, write)
	}
}

// fail closes the channel; what comes before the client's channel.close-ok is ignored.
func (ch *channel) fail(f *fault) {
	ch.release()
	ch.closing = true
	ch.send(channelClose, func(w *writer) { f.write(w, 0) })
}

func (ch *channel) remove() {
	ch.c.channels = slices.DeleteFunc(ch.c.channels, func(other *channel) bool { return other == ch })
}

// release ends the consumers, then requeues what was not acknowledged.
func (ch *channel) release() {
	consumers, unacked := ch.consumers, append(ch.unacked, ch.flying...)
	ch.consumers, ch.unacked, ch.flying, ch.incoming, ch.opened = nil, nil, nil, nil, false
	for _, co := range consumers {
		co.q.forget(co)
	}
	settle(unacked, requeue(ended))
	for _, co := range consumers {
		co.q.use()
	}
}

func (ch *channel) basicMethod(m method, r *reader) *fault {
	switch m {
	case basicPublish:
		return ch.publish(r)
	case basicConsume:
		return ch.consume(r)
	case basicCancel:
		tag, noWait := r.shortstr(), r.flags().bit(0)
		ch.cancel(tag)
		ch.answer(noWait, basicCancel.ok(), func(w *writer) { w.shortstr(tag) })
		return nil
	case basicQos:
		size, prefetch, global := r.long(), r.short(), r.flags().bit(0)
		if size != 0 || global {
			return unknown("prefetch in bytes, or global prefetch")
		}
		ch.prefetch = int(prefetch)
		ch.send(basicQos.ok(), nil)
		return nil
	case basicGet:
		r.short()
		name, noAck := r.shortstr(), r.flags().bit(0)
		q, f := ch.find(name)
		if f == nil {
			ch.get(q, noAck)
		}
		return f
	case basicAck, basicReject, basicNack:
		return ch.settleMethod(m, r)
	}
	return unknown("method %s", m)
}

func (ch *channel) settleMethod(m method, r *reader) *fault {
	tag, f := r.longlong(), r.flags()
	multiple, do := f.bit(0), acknowledge
	switch {
	case m == basicReject && f.bit(0):
		do = requeue(rejected)
	case m == basicNack && f.bit(1):
		do = requeue(nacked)
	case m != basicAck:
		do = reject
	}
	taken, unknownTag := ch.take(tag, multiple && m != basicReject)
	if unknownTag == nil {
		settle(taken, do)
	}
	return unknownTag
}

func (ch *channel) consume(r *reader) *fault {
	r.short()
	name, tag, f := r.shortstr(), r.shortstr(), r.flags()
	noLocal, noAck, exclusive, noWait := f.bit(0), f.bit(1), f.bit(2), f.bit(3)
	if noLocal || exclusive || tag == "" || len(r.table()) > 0 {
		return unknown("consumer that is exclusive or no-local, has arguments or no tag")
	}
	q, notFound := ch.find(name)
	if notFound != nil {
		return notFound
	}
	co := &consumer{ch: ch, q: q, tag: tag, noAck: noAck, prefetch: ch.prefetch}
	ch.consumers = append(ch.consumers, co)
	ch.answer(noWait, basicConsume.ok(), func(w *writer) { w.shortstr(tag) })
	q.active = append(q.active, co)
	q.use()
	q.run()
	return nil
}

// cancel ends a consumer; what it has not acknowledged stays with the channel.
func (ch *channel) cancel(tag string) {
	i := slices.IndexFunc(ch.consumers, func(co *consumer) bool { return co.tag == tag })
	if i < 0 {
		return
	}
	co := ch.consumers[i]
	ch.consumers = slices.Delete(ch.consumers, i, i+1)
	co.q.forget(co)
}

// field is one entry of a table. Tables are lists, so that what is written does not depend
// on the order of a map.
type field struct {
	key   string
	value any
}

type table []field

// array is a field array; its own type tells it from a byte array.
type array []any

// raw is a value of fixed length, or of bytes, which the model carries on as it came.
type raw struct {
	kind byte
	b    string
}

// sizes are the lengths of fixed values, by the type of the field.
var sizes = map[byte]int{'t': 1, 'b': 1, 'B': 1, 's': 2, 'u': 2, 'I': 4, 'i': 4, 'l': 8, 'L': 8, 'f': 4, 'd': 8, 'D': 5, 'T': 8, 'V': 0}

func boolean(is bool) raw { return raw{'t', string([]byte{truth(is)})} }

func integer(n int64) raw { return raw{'l', string(binary.BigEndian.AppendUint64(nil, uint64(n)))} }

// seconds is the time as AMQP writes it.
func seconds(t time.Time) raw {
	return raw{'T', string(binary.BigEndian.AppendUint64(nil, uint64(t.Unix())))}
}

func truth(is bool) byte {
	if is {
		return 1
	}
	return 0
}

func (t table) get(key string) (any, bool) {
	for _, f := range t {
		if f.key == key {
			return f.value, true
		}
	}
	return nil, false
}

// text is a value that is text, or "".
func (t table) text(key string) string {
	value, _ := t.get(key)
	text, _ := value.(string)
	return text
}

// with is the table with this value, in the place of the former one or at the end.
func (t table) with(key string, value any) table {
	next := make(table, 0, len(t)+1)
	found := false
	for _, f := range t {
		if f.key == key {
			f.value, found = value, true
		}
		next = append(next, f)
	}
	if !found {
		next = append(next, field{key, value})
	}
	return next
}

// reader decodes AMQP's types. The first error stays, and all later values are zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n < 0 || n > len(r.b) {
		if r.err == nil {
			r.err = fmt.Errorf("%d bytes are wanted, %d are left", n, len(r.b))
		}
		return nil
	}
	taken := r.b[:n:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) integer(size int) uint64 {
	var all [8]byte
	copy(all[8-size:], r.take(size))
	return binary.BigEndian.Uint64(all[:])
}

func (r *reader) octet() byte       { return byte(r.integer(1)) }
func (r *reader) short() uint16     { return uint16(r.integer(2)) }
func (r *reader) long() uint32      { return uint32(r.integer(4)) }
func (r *reader) longlong() uint64  { return r.integer(8) }
func (r *reader) shortstr() string  { return string(r.take(int(r.octet()))) }
func (r *reader) longstr() string   { return string(r.take(int(r.long()))) }
func (r *reader) flags() flags      { return flags(r.octet()) }
func (r *reader) sub(n int) *reader { return &reader{r.take(n), r.err} }

// flags are the bits of a method, in the order of their fields.
type flags byte

func (f flags) bit(n int) bool { return f&(1<<n) != 0 }

func (r *reader) table() (t table) {
	inner := r.sub(int(r.long()))
	for inner.err == nil && len(inner.b) > 0 {
		t = append(t, field{inner.shortstr(), inner.value()})
	}
	r.err = inner.err
	return t
}

func (r *reader) array() (a array) {
	inner := r.sub(int(r.long()))
	for inner.err == nil && len(inner.b) > 0 {
		a = append(a, inner.value())
	}
	r.err = inner.err
	return a
}

func (r *reader) value() any {
	kind := r.octet()
	size, fixed := sizes[kind]
	switch {
	case fixed:
		return raw{kind, string(r.take(size))}
	case kind == 'S':
		return r.longstr()
	case kind == 'x':
		return raw{kind, r.longstr()}
	case kind == 'A':
		return r.array()
	case kind == 'F':
		return r.table()
	case r.err == nil:
		r.err = fmt.Errorf("field type %q", kind)
	}
	return nil
}

// writer encodes AMQP's types.
type writer struct{ b []byte }

func (w *writer) octet(v byte)      { w.b = append(w.b, v) }
func (w *writer) short(v uint16)    { w.b = binary.BigEndian.AppendUint16(w.b, v) }
func (w *writer) long(v uint32)     { w.b = binary.BigEndian.AppendUint32(w.b, v) }
func (w *writer) longlong(v uint64) { w.b = binary.BigEndian.AppendUint64(w.b, v) }

func (w *writer) shortstr(s string) {
	s = s[:min(len(s), 255)]
	w.octet(byte(len(s)))
	w.b = append(w.b, s...)
}

func (w *writer) longstr(s string) {
	w.long(uint32(len(s)))
	w.b = append(w.b, s...)
}

func (w *writer) bool(v bool) { w.octet(truth(v)) }

// sized writes a length before what write writes.
func (w *writer) sized(write func()) {
	at := len(w.b)
	w.long(0)
	write()
	binary.BigEndian.PutUint32(w.b[at:], uint32(len(w.b)-at-4))
}

func (w *writer) table(t table) {
	w.sized(func() {
		for _, f := range t {
			w.shortstr(f.key)
			w.value(f.value)
		}
	})
}

func (w *writer) tag(tag byte) *writer { w.octet(tag); return w }

func (w *writer) value(value any) {
	switch v := value.(type) {
	case raw:
		if w.octet(v.kind); v.kind == 'x' {
			w.long(uint32(len(v.b)))
		}
		w.b = append(w.b, v.b...)
	case string:
		w.tag('S').longstr(v)
	case array:
		w.tag('A').sized(func() {
			for _, e := range v {
				w.value(e)
			}
		})
	case table:
		w.tag('F').table(v)
	default:
		panic(fmt.Sprintf("a %T in a table", value))
	}
}

// whole is the value of an integer field, of any size.
func whole(value any) (n int64, is bool) {
	v, _ := value.(raw)
	if v.kind == 0 || !strings.ContainsRune("bBsuIil", rune(v.kind)) {
		return 0, false
	}
	if strings.ContainsRune("bsIl", rune(v.kind)) && v.b[0] >= 0x80 {
		n = -1
	}
	for _, b := range []byte(v.b) {
		n = n<<8 | int64(b)
	}
	return n, true
}

// content is a message's properties and body.
type content struct {
	texts   [14]string // short strings, and values of fixed length as they came, by the number of their flag
	has     uint16     // which properties are there: bit 15-n for the nth
	headers table
	body    []byte
}

// properties are the types of basic's properties, in the order of their flags: those of fields in a table, but
// that S is a short string here.
const properties = "SSFBBSSSSTSSSS"

// Some of them by their number.
const (
	headers    = 2
	priority   = 4
	expiration = 7
	userID     = 11
)

func bit(property int) uint16 { return 1 << (15 - property) }

func (c *content) is(property int) bool { return c.has&bit(property) != 0 }

func (c *content) remove(property int) {
	c.has &^= bit(property)
	c.texts[property] = ""
}

func (c *content) setHeaders(t table) {
	c.headers = t
	c.has |= bit(headers)
}

// copy shares the body, which is never changed.
func (c *content) copy() *content {
	other := *c
	return &other
}

func readProperties(r *reader) *content {
	c := &content{has: r.short()}
	for property, kind := range []byte(properties) {
		switch {
		case !c.is(property):
		case kind == 'F':
			c.headers = r.table()
		case kind == 'S':
			c.texts[property] = r.shortstr()
		default:
			c.texts[property] = string(r.take(sizes[kind]))
		}
	}
	return c
}

func (c *content) write(w *writer) {
	w.short(c.has)
	for property, kind := range []byte(properties) {
		switch {
		case !c.is(property):
		case kind == 'F':
			w.table(c.headers)
		case kind == 'S':
			w.shortstr(c.texts[property])
		default:
			w.b = append(w.b, c.texts[property]...)
		}
	}
}
