package model

import "fmt"

// fault ends a channel or, when it is hard, its connection.
type fault struct {
	code uint16
	text string
}

var faultNames = map[uint16]string{
	320: "CONNECTION_FORCED", 403: "ACCESS_REFUSED", 404: "NOT_FOUND", 405: "RESOURCE_LOCKED", 406: "PRECONDITION_FAILED",
	501: "FRAME_ERROR", 502: "SYNTAX_ERROR", 503: "COMMAND_INVALID", 504: "CHANNEL_ERROR",
	505: "UNEXPECTED_FRAME", 530: "NOT_ALLOWED", 540: "NOT_IMPLEMENTED", 541: "INTERNAL_ERROR",
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
