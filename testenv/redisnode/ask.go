package redisnode

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// answerWithin bounds an answer when the context does not.
const answerWithin = 10 * time.Second

// Do gives it a command, on a connection of its own. The answer is a string, an int64,
// nil, or a []any of these; an error that the server answered is an error here. That
// is all that tests need to set up and break servers: a client is not tested by it.
func (s *Server) Do(ctx context.Context, command ...string) (any, error) {
	answer, err := do(ctx, s.Addr(), command)
	if err != nil {
		return nil, fmt.Errorf("%s at %s: %s: %w", s.opts.Name(), s.Addr(), strings.Join(command[:min(2, len(command))], " "), err)
	}
	return answer, nil
}

func do(ctx context.Context, addr string, command []string) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(command))
	for _, word := range command {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := io.WriteString(c, b.String()); err != nil {
		return nil, err
	}
	answer, err := read(bufio.NewReader(c))
	if ctx.Err() != nil {
		err = ctx.Err() // rather than that its end closed the connection
	}
	return answer, err
}

// read reads one answer of Redis' protocol, version 2.
func read(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	kind, rest := line[0], strings.TrimSuffix(line[1:], "\r\n")
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return nil, errors.New(rest)
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	switch {
	case err != nil:
		return nil, fmt.Errorf("an answer that is none of Redis': %.50q", line)
	case kind == ':':
		return n, nil
	case n < 0:
		return nil, nil
	case kind == '$':
		text := make([]byte, n+2)
		_, err := io.ReadFull(r, text)
		return string(text[:n]), err
	case kind == '*':
		all := make([]any, n)
		for i := range all {
			if all[i], err = read(r); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	return nil, fmt.Errorf("an answer that is none of Redis': %.50q", line)
}

// texts is an answer that is a list of strings.
func texts(answer any) (list []string) {
	all, _ := answer.([]any)
	for _, one := range all {
		text, _ := one.(string)
		list = append(list, text)
	}
	return list
}

// Info is a field of what it says of itself; "" when it does not answer or say so.
func (s *Server) Info(ctx context.Context, section, field string) string {
	answer, err := s.Do(ctx, "INFO", section)
	if err != nil {
		return ""
	}
	return fieldOf(answer, field)
}

// fieldOf is a field of lines "field:value".
func fieldOf(answer any, field string) string {
	text, _ := answer.(string)
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(line, field+":"); is {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// until asks until it is so, or fails with what was still not so.
func until(ctx context.Context, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for !is() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("still not so: %s: %w", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}
