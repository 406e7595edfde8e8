package simulate

import "context"

// requeue is what a consumer does that gives a message back as soon as it failed:
// it comes again at once, so the consumers do nothing else. Calls are a flow.
func requeue(ctx context.Context, o Options, rec *record) error {
	var arrive, serve, call whole
	queued, up := 0, upstream{Options: o}
	for t := range int(o.Duration / tick) {
		if t%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		n := arrive.of(o.Rate / float64(ticksPerSecond))
		rec.arrived += int64(n)
		queued += n
		able := o.Consumers / float64(ticksPerSecond)
		// As many calls as it takes to serve all, or as many as they can make, since
		// what fails comes again in no time.
		var served, made int
		if all := float64(queued) / max(1-o.failing(t), 1e-9); all <= min(able, o.Capacity/float64(ticksPerSecond)) {
			served, made = queued, call.of(all)
		} else {
			served, made = min(queued, serve.of(up.serves(t, able))), call.of(able)
		}
		queued -= served
		// RabbitMQ puts a message back where it was, so what is new waits behind it.
		first := min(n, served)
		rec.called(t, true, n, first)
		rec.called(t, false, max(made, served, n)-n, served-first)
		rec.tick(t, state{queued: queued})
	}
	return nil
}
