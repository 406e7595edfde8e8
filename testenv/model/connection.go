package model

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"slices"
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
	sent, received       bool // since the heartbeats last looked
	silent               int  // how often nothing was received
	alarms               []*alarm
	canBeBlocked         bool // the client understands connection.blocked
	blocked              bool // nothing is read from it
}

func newConnection(b *Broker, e net.Conn) *connection {
	return &connection{b: b, end: e, frameMax: frameMax, channelMax: channelMax}
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
				{"publisher_confirms", true}, {"exchange_exchange_bindings", true}, {"basic.nack", true},
				{"consumer_cancel_notify", true}, {"authentication_failure_close", true}, {"per_consumer_qos", true}, {"connection.blocked", true},
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
	c.received = true
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
	case m == connectionCloseOk:
		c.terminate()
		return nil
	case m == connectionClose:
		c.release()
		c.send(0, connectionCloseOk, nil)
		c.terminate()
		return nil
	case c.step == closing:
		return nil
	case m == connectionStartOk && c.step == starting:
		return c.authenticate(r)
	case m == connectionTuneOk && c.step == tuning:
		return c.tune(int(r.short()), int(r.long()), r.short())
	case m == connectionOpen && c.step == opening:
		if vhost := r.shortstr(); vhost != c.b.options.VHost {
			return faultf(530, "vhost %s not found", vhost)
		}
		c.step = opened
		c.send(0, connectionOpenOk, func(w *writer) { w.shortstr("") })
		return nil
	}
	return unknown("method %s at this point of a connection", m)
}

func (c *connection) authenticate(r *reader) *fault {
	properties := r.table()
	mechanism, response := r.shortstr(), r.longstr()
	if mechanism != "PLAIN" {
		return unknown("authentication mechanism %s", mechanism)
	}
	if response != "\x00guest\x00guest" {
		return faultf(403, "Login was refused using authentication mechanism PLAIN. For details see the broker logfile.")
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
	return can == true
}

func (c *connection) tune(channels, frame int, heartbeat uint16) *fault {
	switch {
	case channels == 0 || channels > channelMax:
		return faultf(530, "negotiated channel_max = %d is higher than the maximum allowed value (%d)", channels, channelMax)
	case frame == 0 || frame > frameMax:
		return faultf(530, "negotiated frame_max = %d is higher than the maximum allowed value (%d)", frame, frameMax)
	case frame < smallestFrameMax:
		return faultf(530, "negotiated frame_max = %d is lower than the minimum allowed value (%d)", frame, smallestFrameMax)
	}
	c.step, c.channelMax, c.frameMax = opening, channels, frame
	if c.heartbeat = time.Duration(heartbeat) * time.Second; c.heartbeat > 0 {
		c.alarms = make([]*alarm, 2)
		c.every(0, c.heartbeat/2, c.beat)
		c.every(1, c.heartbeat, c.listen)
	}
	return nil
}

// every does something until the connection ends.
func (c *connection) every(n int, interval time.Duration, do func()) {
	c.alarms[n] = c.b.clock.set(time.Now().Add(interval), func() {
		if do(); !c.ended {
			c.every(n, interval, do)
		}
	})
}

// beat sends a heartbeat when nothing else was sent.
func (c *connection) beat() {
	if !c.sent && c.write(heartbeatFrame, 0, nil) != nil {
		c.terminate() // a client of which nothing is read has gone
	}
	c.sent = false
}

// listen ends a connection that was silent for two intervals, as rabbit_heartbeat does.
func (c *connection) listen() {
	c.silent++
	if c.received || c.blocked {
		c.silent = 0
	}
	c.received = false
	if c.silent > 1 {
		c.terminate()
	}
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
	for _, a := range c.alarms {
		c.b.clock.cancel(a)
	}
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
