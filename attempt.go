package redrive

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/redrive-mq/redrive/wire"
)

// try runs a handler once. A panic is its failure.
func try(ctx context.Context, timeout time.Duration, handle Handler, m *Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return handle(ctx, m)
}

// permanent tells what a person must mend from what passes.
func permanent(err error) bool {
	for _, e := range []error{wire.ErrForbidden, wire.ErrQueueGone, wire.ErrUnroutable, wire.ErrDiffers, wire.ErrNoType} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
