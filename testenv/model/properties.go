package model

// content is a message's properties and body.
type content struct {
	texts     [14]string // the short strings, by the number of their flag
	has       uint16     // which properties are there: bit 15-n for the nth
	headers   table
	mode      byte
	priority  byte
	timestamp uint64
	body      []byte
}

// The properties of basic, in the order of their flags.
const (
	contentType = iota
	contentEncoding
	headers
	deliveryMode
	priority
	correlationID
	replyTo
	expiration
	messageID
	timestampProperty
	typeProperty
	userID
	appID
	clusterID
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
	for property := contentType; property <= clusterID; property++ {
		if !c.is(property) {
			continue
		}
		switch property {
		case headers:
			c.headers = r.table()
		case deliveryMode:
			c.mode = r.octet()
		case priority:
			c.priority = r.octet()
		case timestampProperty:
			c.timestamp = r.longlong()
		default:
			c.texts[property] = r.shortstr()
		}
	}
	return c
}

func (c *content) write(w *writer) {
	w.short(c.has)
	for property := contentType; property <= clusterID; property++ {
		if !c.is(property) {
			continue
		}
		switch property {
		case headers:
			w.table(c.headers)
		case deliveryMode:
			w.octet(c.mode)
		case priority:
			w.octet(c.priority)
		case timestampProperty:
			w.longlong(c.timestamp)
		default:
			w.shortstr(c.texts[property])
		}
	}
}
