package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// bodyFrames sends body frames of 1 MiB for ever, until the pipe closes.
func bodyFrames(w io.Writer) {
	const size = 1 << 20
	frame := make([]byte, frameHead+size+1)
	frame[0], frame[len(frame)-1] = frameBody, frameEnd
	binary.BigEndian.PutUint32(frame[3:], size)
	for {
		if _, err := w.Write(frame); err != nil {
			return
		}
	}
}

func buffered(c *consumingConn) int {
	c.bodies.mu.Lock()
	defer c.bodies.mu.Unlock()
	return c.bodies.buffered
}

// readToLimit reads endless bodies until the byte limit is reached, and passes what Read then says.
func readToLimit(t *testing.T) (c *consumingConn, reads <-chan error) {
	near, far := net.Pipe()
	sent, read := make(chan struct{}), make(chan struct{})
	go func() { defer close(sent); bodyFrames(far) }()
	c = newConsumingConn(near)
	results := make(chan error)
	stop := make(chan struct{})
	go func() {
		defer close(read)
		b := make([]byte, 2<<20)
		for over := false; ; {
			over = over || buffered(c) >= maxBuffered
			_, err := c.Read(b)
			if over || err != nil {
				select {
				case results <- err:
				case <-stop:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		c.Close()
		far.Close()
		close(stop)
		<-sent
		<-read
	})
	for buffered(c) <= maxBuffered {
		select {
		case err := <-results:
			t.Fatalf("read on at %d bytes: %v", buffered(c), err)
		default:
		}
	}
	return c, results
}

func TestReadingStopsAtTheByteLimit(t *testing.T) {
	c, reads := readToLimit(t)
	if in := buffered(c); in > maxBuffered+1<<20 {
		t.Errorf("%d bytes are in memory", in)
	}
	// The client's deadline passed meanwhile; that is no reason to lose the connection.
	must(t, c.SetReadDeadline(time.Now().Add(-time.Second)))
	c.bodies.remove(8 << 20)
	for range 2 {
		if err := <-reads; err != nil {
			t.Fatalf("after some bytes were processed: %v", err)
		}
	}
}

// A message larger than the bound is read when the consumer is idle.
func TestAMessageOverTheBoundIsReadByAnIdleIntake(t *testing.T) {
	c, reads := readToLimit(t)
	c.bodies.setIdle(true)
	for range 3 {
		must(t, <-reads)
	}
}

// Each delivery is in one batch, in order; a batch is as large as what has arrived, up to a
// bound of messages and bytes, and its tag is that of its last message.
func TestEachDeliveryIsInOneBatch(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	deliveries := make(chan amqp.Delivery, 2000)
	bodies := make([][]byte, 1200)
	for i, size := range map[int]int{3: 7 << 20, 4: 2 << 20, 5: 7 << 20, 6: 9 << 20} {
		bodies[i] = make([]byte, size)
	}
	for i, b := range bodies {
		deliveries <- amqp.Delivery{DeliveryTag: uint64(i + 1), Body: b, CorrelationId: string(rune('0' + i))}
	}
	close(deliveries)
	g := &batcher{deliveries: deliveries, frames: newConsumingConn(client)}
	var got []string
	var sizes []int
	var tags []uint64
	for more := true; more; {
		var batch []wire.Delivery
		var last uint64
		if batch, last, more = g.next(context.Background()); len(batch) == 0 {
			continue
		}
		bytes := 0
		for _, d := range batch {
			got = append(got, d.Message.CorrelationID)
			bytes += len(d.Message.Body)
		}
		if bytes > batchBytes && len(batch) > 1 {
			t.Errorf("a batch of %d messages has %d bytes", len(batch), bytes)
		}
		sizes, tags = append(sizes, len(batch)), append(tags, last)
	}
	for i := range bodies {
		if i >= len(got) || got[i] != string(rune('0'+i)) {
			t.Fatalf("number %d is missing or not in its place", i)
		}
	}
	if len(got) != len(bodies) || !slices.Equal(sizes, []int{4, 1, 1, 1, 512, 512, 169}) || !slices.Equal(tags, []uint64{4, 5, 6, 7, 519, 1031, 1200}) {
		t.Errorf("%d deliveries in batches of %v that end with the tags %v", len(got), sizes, tags)
	}
}

// gatherAt returns the other end of a pipe, where each Read gets what one write wrote; until then the write hangs.
func gatherAt(t *testing.T) (g *coalescingConn, far net.Conn) {
	near, far := net.Pipe()
	t.Cleanup(func() { far.Close() })
	return newCoalescingConn(near), far
}

func write(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
		t.Errorf("writing %q: %d, %v", text, n, err)
	}
}

func readOnce(t *testing.T, r io.Reader) []byte {
	t.Helper()
	b := make([]byte, 4*maxCoalesced)
	n, err := r.Read(b)
	if err != nil {
		t.Error(err)
	}
	return b[:n]
}

func TestWritesDuringAWriteAreWrittenAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, far := gatherAt(t)
		for _, want := range []string{"bcdefg", "ijk"} {
			write(t, g, "first")
			synctest.Wait() // its write is under way
			for _, c := range want {
				write(t, g, string(c))
			}
			if got := readOnce(t, far); string(got) != "first" {
				t.Errorf("the write under way wrote %q", got)
			}
			if got := readOnce(t, far); string(got) != want {
				t.Errorf("the next wrote %q, want %q", got, want)
			}
		}
		must(t, g.Close())
	})
}

// Nothing is lost, torn or out of order, and the caller may use its bytes again at once.
func TestWritersKeepTheirOrder(t *testing.T) {
	const writers, each, size = 4, 5000, 64
	g, far := gatherAt(t)
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			b := make([]byte, size)
			for n := range each {
				for at := 0; at < size; at += 8 {
					binary.BigEndian.PutUint64(b[at:], uint64(w)<<32|uint64(n))
				}
				write(t, g, string(b))
			}
		})
	}
	next := [writers]uint32{}
	b := make([]byte, size)
	for range writers * each {
		must(t, errOf(io.ReadFull(far, b)))
		w, n := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
		if w >= writers || n != next[w] || !bytes.Equal(b, bytes.Repeat(b[:8], size/8)) {
			t.Fatalf("got %x, when writer %d's next is %d", b, w, next[w%writers])
		}
		next[w]++
	}
	writing.Wait()
	must(t, g.Close())
}

// full fills the buffer while the other end does not read, and starts one more write, which waits.
func full(t *testing.T, g *coalescingConn) (waiting <-chan error) {
	write(t, g, "under way")
	synctest.Wait()
	write(t, g, string(make([]byte, maxCoalesced)))
	result := make(chan error, 1)
	go func() {
		_, err := g.Write([]byte("late"))
		result <- err
	}()
	synctest.Wait()
	select {
	case err := <-result:
		t.Fatalf("more than %d bytes gathered (%v)", maxCoalesced, err)
	default:
	}
	return result
}

func TestAFullWriteBufferWaitsForTheOtherEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, far := gatherAt(t)
		waiting := full(t, g)
		readOnce(t, far)
		expect.Err(t, <-waiting, nil, "when there was room")
		expect.Equal(t, len(readOnce(t, far)), maxCoalesced, "bytes had gathered")
		if got := readOnce(t, far); string(got) != "late" {
			t.Errorf("then came %q", got)
		}
		g.Close()
	})
}

func TestCloseReleasesWaitingWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := gatherAt(t)
		waiting := full(t, g)
		must(t, g.Close())
		if err := <-waiting; err == nil {
			t.Error("what was never sent was reported as written")
		}
		if n, err := g.Write([]byte("x")); n != 0 || err == nil {
			t.Errorf("writing after Close: %d, %v", n, err)
		}
		g.Close() // a second time does not hang
	})
}

func TestAWriteThatFailedFailsTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, far := gatherAt(t)
		waiting := full(t, g)
		far.Close()
		expect.Err(t, <-waiting, io.ErrClosedPipe, "who waited got")
		if n, err := g.Write([]byte("x")); n != 0 || !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("who came later got %d, %v", n, err)
		}
		g.Close()
	})
}

var must, errOf = expect.NoError, expect.ErrOf

// header is a content header with a content type and a header table.
func header(table ...[]byte) []byte {
	p := append(make([]byte, 12), 0xA0, 0x00) // flags: content type, headers
	p = append(p, 1, 'c')
	return append(p, sized(bytes.Join(table, nil))...)
}

func sized(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }

func entry(name string, kind byte, value []byte) []byte {
	return append(append([]byte{byte(len(name))}, name...), append([]byte{kind}, value...)...)
}

// nested is a list in a list, so many deep.
func nested(depth int) []byte {
	b := sized(nil)
	for range depth - 1 {
		b = sized(append([]byte{'A'}, b...))
	}
	return b
}

func TestHeadersAreRepairedOnlyWhereTheClientCannotReadThem(t *testing.T) {
	large := make([]byte, 8)
	binary.BigEndian.PutUint64(large, 1<<40)
	many := make([][]byte, maxElements+1)
	for i := range many {
		many[i] = entry(fmt.Sprintf("%05d", i), 'V', nil)
	}
	death := entry("x-death", 'A', sized(nil))
	for _, c := range []struct {
		name       string
		in, want   []byte
		note, lost string
	}{
		{"nothing to repair", header(entry("a", 'S', sized([]byte("L")))), header(entry("a", 'S', sized([]byte("L")))), "", ""},
		{"L", header(entry("a", 'L', large)), header(entry("a", 'l', large)), "type L", ""},
		{"L within a table within a list",
			header(entry("a", 'A', sized(append([]byte{'F'}, sized(entry("b", 'L', large))...)))),
			header(entry("a", 'A', sized(append([]byte{'F'}, sized(entry("b", 'l', large))...)))), "type L", ""},
		{"as deep as may be", header(entry("a", 'A', nested(maxNesting))), header(entry("a", 'A', nested(maxNesting))), "", ""},
		{"too deep", header(entry("a", 'A', nested(maxNesting+1))), header(entry("a", 'x', nested(maxNesting+1))), "", `"a" is nested`},
		{"a list too long", header(entry("a", 'A', sized(bytes.Repeat([]byte{'V'}, maxElements+1)))),
			header(entry("a", 'x', sized(bytes.Repeat([]byte{'V'}, maxElements+1)))), "", "more than 8192 entries"},
		{"too many headers", header(append(many, death)...),
			header(death, entry(wire.HeaderUnreadable, 'x', sized(bytes.Join(append(many, death), nil)))), "", "8194 headers"},
		{"an unknown type is the client's to judge", header(entry("a", '?', nil)), header(entry("a", '?', nil)), "", ""},
		{"a length past the end", header(entry("a", 'S', []byte{0, 0, 0, 9, 'x'})), header(entry("a", 'S', []byte{0, 0, 0, 9, 'x'})), "", ""},
	} {
		got, m := repairHeader(bytes.Clone(c.in))
		if !bytes.Equal(got, c.want) {
			t.Errorf("%s: got %.200q", c.name, got)
		}
		if !strings.Contains(m.note, c.note) || (c.note == "") != (m.note == "") {
			t.Errorf("%s: note %q", c.name, m.note)
		}
		if !strings.Contains(m.cannotRepublish, c.lost) || (c.lost == "") != (m.cannotRepublish == "") {
			t.Errorf("%s: cannot be republished: %q", c.name, m.cannotRepublish)
		}
	}
}

// Whatever arrives, the repair does not panic, and repaired headers need no second one.
func FuzzHeaderRepair(f *testing.F) {
	f.Add(header(entry("a", 'L', make([]byte, 8))))
	f.Add(header(entry("a", 'A', nested(maxNesting+2))))
	f.Add(header(entry("x-death", 'A', sized(append([]byte{'F'}, sized(entry("count", 'l', make([]byte, 8)))...)))))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		once, m := repairHeader(bytes.Clone(p))
		duplicateHeader := m.duplicateHeader
		if m.duplicateHeader = ""; m == (headerRepair{}) {
			return
		}
		twice, again := repairHeader(bytes.Clone(once))
		if duplicateHeader == "" && again.duplicateHeader != "" {
			t.Errorf("repairing duplicated a name: %s", again.duplicateHeader)
		}
		if again.duplicateHeader = ""; again != (headerRepair{}) || !bytes.Equal(once, twice) {
			t.Errorf("repaired twice: %+v, then %+v", m, again)
		}
	})
}

func text(name, value string) []byte { return entry(name, 'S', sized([]byte(value))) }

func deathEntry(fields ...[]byte) []byte {
	return append([]byte{'F'}, sized(bytes.Join(fields, nil))...)
}

func deathList(name string, entries ...[]byte) []byte {
	return entry(name, 'A', sized(bytes.Join(entries, nil)))
}

func TestADeathHeaderThatStandsTwiceProvesNothing(t *testing.T) {
	own := deathEntry(text("queue", "mine"), text("reason", "rejected"))
	forged := deathEntry(text("queue", "secret"), text("reason", "rejected"))
	many := make([][]byte, maxElements+1)
	for i := range many {
		many[i] = entry(fmt.Sprintf("%05d", i), 'V', nil)
	}
	for _, c := range []struct {
		name  string
		table [][]byte
		want  string // "": it proves what it says
	}{
		{"as RabbitMQ writes it", [][]byte{deathList("x-death", own, forged), text("x-first-death-queue", "mine")}, ""},
		{"other headers twice", [][]byte{text("a", "1"), text("a", "2"), deathList("x-death", own)}, ""},
		{"two headers", [][]byte{deathList("x-death", own), text("a", "1"), deathList("x-death", forged)}, `the header "x-death" twice`},
		{"of two types", [][]byte{deathList("x-death", own), text("x-death", "x")}, `the header "x-death" twice`},
		{"two first deaths", [][]byte{text("x-first-death-queue", "a"), text("x-first-death-queue", "b")}, `"x-first-death-queue" twice`},
		{"two last deaths", [][]byte{text("x-last-death-queue", "a"), text("x-last-death-queue", "b")}, `"x-last-death-queue" twice`},
		{"a field twice", [][]byte{deathList("x-death", deathEntry(text("queue", "mine"), text("reason", "rejected"), text("queue", "secret")))}, `entry 1 of its header "x-death" has the field "queue" twice`},
		{"a field twice further on", [][]byte{deathList("x-death", own, []byte{'V'}, deathEntry(text("reason", "a"), text("reason", "b")))}, `entry 3 of`},
		{"too many headers besides", append(many, deathList("x-death", own), deathList("x-death", forged)), `the header "x-death" twice`},
		{"malformed after it", [][]byte{deathList("x-death", own), entry("a", 'S', []byte{0, 0, 0, 9, 'x'})}, malformedTable},
	} {
		_, m := repairHeader(header(c.table...))
		if !strings.Contains(m.duplicateHeader, c.want) || (c.want == "") != (m.duplicateHeader == "") {
			t.Errorf("%s: %q, want %q", c.name, m.duplicateHeader, c.want)
		}
	}
}

// A second x-death, or a second field of one name in an entry, is found wherever it is, and nothing else.
func TestEveryDoubledNameIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		duplicateHeader, headers := false, 0
		var table [][]byte
		for range rapid.IntRange(0, 5).Draw(t, "headers") {
			if !rapid.Bool().Draw(t, "death") {
				table = append(table, text(rapid.SampledFrom([]string{"a", "b", "x-deaths", "queue"}).Draw(t, "name"), "v"))
				continue
			}
			var entries [][]byte
			for range rapid.IntRange(0, 3).Draw(t, "entries") {
				var fields [][]byte
				seen := map[string]bool{}
				for range rapid.IntRange(0, 4).Draw(t, "fields") {
					name := rapid.SampledFrom([]string{"queue", "reason", "exchange", "count"}).Draw(t, "field")
					duplicateHeader = duplicateHeader || seen[name]
					seen[name] = true
					fields = append(fields, text(name, "v"))
				}
				entries = append(entries, deathEntry(fields...))
			}
			table = append(table, deathList("x-death", entries...))
			headers++
		}
		duplicateHeader = duplicateHeader || headers > 1
		if _, m := repairHeader(header(table...)); (m.duplicateHeader != "") != duplicateHeader {
			t.Errorf("duplicate header: %q, want %v", m.duplicateHeader, duplicateHeader)
		}
	})
}

// Every property of a delivery is read, and sent again as it was, but persistent.
func TestEveryPropertyIsReadAndSentAgain(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	d := amqp.Delivery{Exchange: "e", RoutingKey: "k", Redelivered: true, ContentType: "ct", ContentEncoding: "ce", DeliveryMode: amqp.Transient, Priority: 7,
		CorrelationId: "c", ReplyTo: "r", Expiration: "1000", MessageId: "m", Timestamp: now, Type: "t", UserId: "u", AppId: "a", Body: []byte("b"), Headers: amqp.Table{"h": "v"}}
	m := Received(&d)
	if m.Exchange != "e" || m.RoutingKey != "k" || m.DeliveryMode != amqp.Transient {
		t.Errorf("read as %+v", m)
	}
	p := publishing(&m)
	if p.ContentType != "ct" || p.ContentEncoding != "ce" || p.DeliveryMode != amqp.Persistent || p.Priority != 7 || p.CorrelationId != "c" || p.ReplyTo != "r" || p.Expiration != "1000" ||
		p.MessageId != "m" || !p.Timestamp.Equal(now) || p.Type != "t" || p.UserId != "u" || p.AppId != "a" || string(p.Body) != "b" || p.Headers["h"] != "v" {
		t.Errorf("sent as %+v", p)
	}
}

// Every property takes its part of a frame: RabbitMQ ends the connection on properties that do not fit one.
func TestTheSizeOfAHeaderIsOfAllProperties(t *testing.T) {
	none := headerSize(&wire.Message{})
	for i, m := range []wire.Message{{ContentType: "abc"}, {ContentEncoding: "abc"}, {CorrelationID: "abc"},
		{ReplyTo: "abc"}, {Expiration: "abc"}, {MessageID: "abc"}, {Type: "abc"}, {UserID: "abc"}, {AppID: "abc"}} {
		expect.Equal(t, headerSize(&m)-none, 3, "property %d: 3 bytes count as", i)
	}
}

// Every connection is refused what is not allowed, and late what a token allowed until it expired.
func TestARefusalThatRepeatsEndsAConnectionNowAndThen(t *testing.T) {
	for _, c := range []struct {
		refusedFrom time.Duration // the age of a connection
		want        []time.Duration
	}{
		{0, []time.Duration{1, 2, 4, 8, 16, 32, 60, 60}},
		{10 * time.Minute, []time.Duration{10, 10, 10, 10, 10, 10, 10, 10}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var l link
			var ended bool
			var ages []time.Duration
			l.end = func(error) { ended = true }
			began := time.Now()
			for l.connected = began; len(ages) < len(c.want) && time.Since(began) < 24*time.Hour; {
				time.Sleep(15 * time.Second)
				if age := time.Since(l.connected); age >= c.refusedFrom {
					if l.refused(wire.ErrForbidden); ended {
						ages, ended, l.connected = append(ages, age.Truncate(time.Minute)/time.Minute), false, time.Now()
					}
				}
			}
			if !slices.Equal(ages, c.want) {
				t.Errorf("refused after %v: connections ended at the age of %d minutes; want %d", c.refusedFrom, ages, c.want)
			}
		})
	}
}

// An error that ends the connection is about a queue only if RabbitMQ crashed over it.
func TestTheEndOfAConnectionIsNoRefusalOfAQueue(t *testing.T) {
	for _, c := range []struct {
		code    int
		server  bool
		refuses bool
	}{
		{amqp.NotFound, true, true},
		{amqp.AccessRefused, true, true},
		{amqp.ResourceLocked, true, true},
		{amqp.InternalError, true, true},
		{amqp.ConnectionForced, true, false}, // a shutdown of the node, or an administrator
		{amqp.ChannelError, false, false},
		{amqp.FrameError, false, false},
	} {
		err := fmt.Errorf("asking: %w", &amqp.Error{Code: c.code, Server: c.server})
		if refusesQueue(err) != c.refuses {
			t.Errorf("%v: %v", err, !c.refuses)
		}
	}
	if refusesQueue(amqp.ErrClosed) || refusesQueue(errors.New("cut")) {
		t.Error("a connection that ended is taken for a refusal")
	}
}

// Errors of the client, such as 501 with the text EOF, are not RabbitMQ's.
func TestALostConnectionIsNothingThatRabbitMQSays(t *testing.T) {
	for err, want := range map[*amqp.Error]string{
		{Code: amqp.FrameError, Reason: "EOF"}: "the connection was lost: EOF",
		amqp.ErrClosed:                         "the connection was lost: channel/connection is not open",
		{Code: amqp.ConnectionForced, Reason: "CONNECTION_FORCED - broker shut down", Server: true}: "RabbitMQ says 320: CONNECTION_FORCED - broker shut down",
	} {
		if is := explain(err).Error(); is != want {
			t.Errorf("%q, want %q", is, want)
		}
	}
}

// In TLS 1.3 RabbitMQ refuses a client certificate after the handshake, and the client may see only the end.
func TestAConnectionClosedJustAfterTheTLSHandshakeNamesTheCertificate(t *testing.T) {
	for _, end := range []error{io.EOF, amqp.ErrClosed, errors.New("read: connection reset by peer")} {
		if err := explain(explainTLSEnd(end, false)); !strings.Contains(err.Error(), "RabbitMQ refuses this client's certificate") {
			t.Errorf("%v is explained as %v", end, err)
		}
	}
	if err := explainTLSEnd(amqp.ErrVhost, false); err != amqp.ErrVhost {
		t.Errorf("%v is explained as %v", amqp.ErrVhost, err)
	}
}
