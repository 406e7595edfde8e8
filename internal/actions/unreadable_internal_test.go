package actions

import (
	"errors"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Of a message that cannot be read every verb says that it cannot, as a failure: not that it
// is not there any more, which skips it.
func TestWhatCannotBeReadIsAFailure(t *testing.T) {
	for verb := range verbs {
		o, e := RecordChange{Verb: verb}.outcome(MessageRef{ID: "1"}, &store.Record{Unreadable: store.ErrUnreadable}, time.Now())
		if o.Outcome != Failed || o.Why != store.ErrUnreadable.Error() || e.Keep || e.Delete || len(e.Add) > 0 {
			t.Errorf("%s: %+v, %+v", verb, o, e)
		}
	}
	if errors.Is(store.ErrUnreadable, store.ErrNotFound) {
		t.Error("what cannot be read is said not to be there")
	}
}
