package memredis

import (
	"bufio"
	"errors"
	"io"
	"strconv"
)

// What a command answers: nil, an int64, a string, or one of these.
type (
	status  string   // such as OK
	failure string   // an error; a command that panics with one answers it
	pairs   []any    // keys and values in turns, a map of RESP3
	push    []any    // what was not asked for
	answers []answer // several, of SUBSCRIBE and the like
	answer  any
)

func (f failure) Error() string { return string(f) }

var errProtocol = errors.New("it is no command of RESP")

// readCommand reads an array of bulk strings.
func readCommand(r *bufio.Reader) ([]string, error) {
	n, err := readLength(r, '*')
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := readLength(r, '$')
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		args[i] = string(b[:size])
	}
	return args, nil
}

func readLength(r *bufio.Reader, kind byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 4 || line[0] != kind || line[len(line)-2] != '\r' {
		return 0, errProtocol
	}
	n, err := strconv.Atoi(line[1 : len(line)-2])
	if err != nil || n < 0 {
		return 0, errProtocol
	}
	return n, nil
}

// appendAnswer writes an answer in version 2 or 3 of RESP.
func appendAnswer(b []byte, a answer, version int) []byte {
	switch a := a.(type) {
	case nil:
		if version == 3 {
			return append(b, "_\r\n"...)
		}
		return append(b, "$-1\r\n"...)
	case int64:
		return appendLine(b, ':', strconv.FormatInt(a, 10))
	case string:
		b = appendLine(b, '$', strconv.Itoa(len(a)))
		return append(append(b, a...), "\r\n"...)
	case status:
		return appendLine(b, '+', string(a))
	case failure:
		return appendLine(b, '-', string(a))
	case pairs:
		if version == 3 {
			return appendAll(appendLine(b, '%', strconv.Itoa(len(a)/2)), a, version)
		}
		return appendAll(appendLine(b, '*', strconv.Itoa(len(a))), a, version)
	case push:
		kind := byte('*')
		if version == 3 {
			kind = '>'
		}
		return appendAll(appendLine(b, kind, strconv.Itoa(len(a))), a, version)
	case []any:
		return appendAll(appendLine(b, '*', strconv.Itoa(len(a))), a, version)
	case answers:
		for _, one := range a {
			b = appendAnswer(b, one, version)
		}
		return b
	}
	panic("an answer of no kind that there is")
}

func appendAll(b []byte, all []any, version int) []byte {
	for _, one := range all {
		b = appendAnswer(b, one, version)
	}
	return b
}

func appendLine(b []byte, kind byte, line string) []byte {
	return append(append(append(b, kind), line...), "\r\n"...)
}
