package server

import (
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// openConsent lets reports of a queue be retried whose owner points it at Redrive.
func (s *vhost) openConsent() (err error) {
	if s.config.Broker.Management != "" {
		if s.manage, err = s.config.Broker.API(s.config.VHost()); err != nil {
			return err
		}
	}
	s.consent = management.NewConsent(s.manage, wire.ExchangeDeadLetters)
	return nil
}
