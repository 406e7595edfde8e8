package httpapi

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
)

// The remedy of an error is a field of its own, in the answer and in the client's error.
func TestAProblemHasTheHint(t *testing.T) {
	err := fmt.Errorf("replay: %w", hint.Errorf("give it more maxmemory", "%w: Redis has 1 of 64 MiB free", store.ErrFull))
	data, _ := json.Marshal(problemOf(err))
	var p Problem
	if err := json.Unmarshal(data, &p); err != nil {
		t.Fatal(err)
	}
	if p.Code != "full" || p.Detail != "replay: "+store.ErrFull.Error()+": Redis has 1 of 64 MiB free" || p.Hint != "give it more maxmemory" {
		t.Errorf("%s", data)
	}
	if hint.Of(&p) != p.Hint || hint.Text(&p) != p.Detail || p.Error() != err.Error() {
		t.Errorf("the client's error is %q, with the hint %q", hint.Text(&p), hint.Of(&p))
	}
}
