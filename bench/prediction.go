package main

// prediction is what larger machines should do by the CPU that a row took here. It is no
// measurement, and leaves out what is not CPU: disks, networks, locks.
type prediction struct {
	From    string  `json:"from"`
	Service float64 `json:"messages_per_s_of_a_service_core"`
	Redis   float64 `json:"messages_per_s_of_redis"` // commands run on one core
	Broker  float64 `json:"messages_per_s_of_a_broker_core"`
	// What the others take when that core of Redis is busy.
	ServiceCores float64 `json:"service_cores"`
	BrokerCores  float64 `json:"broker_cores"`
}

// predict is nil where it is not known what CPU each took.
func (r *report) predict(m *result) *prediction {
	own, redis, broker := m.each(m.Own), m.each(m.Redis), m.each(m.Broker)
	if own == 0 || redis == 0 || broker == 0 {
		return nil
	}
	p := &prediction{From: m.Row, Service: round(1e6 / own), Redis: round(1e6 / redis), Broker: round(1e6 / broker),
		ServiceCores: round(own / redis), BrokerCores: round(broker / redis)}
	r.printf("Predicted, not measured, from the CPU of %q (without disks, networks and locks): a core does %.0f messages/s for the service, %.0f for Redis (which has one), %.0f for RabbitMQ. So Redis is the limit when the replicas have %.1f cores in all and RabbitMQ has %.1f.\n",
		p.From, p.Service, p.Redis, p.Broker, p.ServiceCores, p.BrokerCores)
	return p
}
