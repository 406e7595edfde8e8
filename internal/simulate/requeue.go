package simulate

import "context"

// requeue simulates consumers that requeue a message as soon as it has failed: RabbitMQ delivers it
// again at once, so they do little else. Calls are a flow, and not counted singly.
func requeue(ctx context.Context, o Options, rec *record) error {
	var arrive, serve, call carry
	queued, up := 0, upstream{Options: o}
	for t := range int(o.Duration / tick) {
		if t%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		n := arrive.whole(o.Rate / float64(ticksPerSecond))
		rec.Arrived += int64(n)
		queued += n
		able := o.Consumers / float64(ticksPerSecond)
		// As many calls as it takes to serve all, or as many as the consumers can make, since
		// what fails is delivered again in no time.
		var served, made int
		if all := float64(queued) / max(1-o.failing(t), 1e-9); all <= min(able, o.Capacity/float64(ticksPerSecond)) {
			served, made = queued, call.whole(all)
		} else {
			served, made = min(queued, serve.whole(up.serves(t, able))), call.whole(able)
		}
		queued -= served
		// RabbitMQ requeues a message where it was, so what is new waits behind it.
		first := min(n, served)
		rec.called(t, true, n, first)
		rec.called(t, false, max(made, served, n)-n, served-first)
		rec.tick(t, state{queued: queued})
	}
	return nil
}
