package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWatchShowsItAgainUntilItIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var out, errOut bytes.Buffer
		p := &program{out: &out, err: &errOut}
		begun, times := time.Now(), 0
		err := p.repeat(ctx, 2*time.Second, func() error {
			times++
			switch times {
			case 2:
				return errors.New("no service answers")
			case 4:
				stop()
			}
			fmt.Fprintln(&out, times)
			return nil
		})
		if err != nil || out.String() != "1\n3\n4\n" || !strings.Contains(errOut.String(), "no service answers") {
			t.Errorf("%v, %q, %q", err, &out, &errOut)
		}
		if took := time.Since(begun); took != 6*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestWatchEndsWhereTheFirstAnswerIsAnError(t *testing.T) {
	p := &program{out: new(bytes.Buffer), err: new(bytes.Buffer)}
	want := errors.New("unknown queue")
	if err := p.repeat(t.Context(), time.Hour, func() error { return want }); !errors.Is(err, want) {
		t.Error(err)
	}
}
