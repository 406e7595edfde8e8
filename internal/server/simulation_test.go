package server

import (
	"context"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

func TestAPolicysStormIsDrawnOnce(t *testing.T) {
	var s outagePictures
	p := policy.Default()
	p.Name = `<b>&"`
	one := s.draw(t.Context(), p, throttle.Rules{Rate: 5})
	if !strings.HasPrefix(string(one), "<svg ") || strings.Contains(string(one), "<b>") || !strings.Contains(string(one), `role="img" aria-label="Load on an upstream`) {
		t.Errorf("it draws %.300s", one)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if s.draw(gone, p, throttle.Rules{Rate: 5}) != one {
		t.Error("it is drawn a second time")
	}
	if s.draw(gone, p, throttle.Rules{Rate: 4}) != "" {
		t.Error("a policy that has changed has its old picture")
	}
}
