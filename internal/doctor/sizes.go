package doctor

import "fmt"

// usualFrame is RabbitMQ's default, in bytes.
const usualFrame = 131_072

// largest is RabbitMQ's default limit of a message, in bytes. The one in force it does not report.
func (s *Scene) largest() int64 {
	if s.versionAtLeast(4, 0) {
		return 16 << 20
	}
	return 128 << 20
}

// frames checks the limit of a frame, which AMQP shows.
func frames(s *Scene) (all []Finding) {
	if s.FrameMax > 0 && s.FrameMax < usualFrame {
		all = append(all, Finding{Status: Warning, What: fmt.Sprintf("frames are limited to %d bytes", s.FrameMax),
			Remedy: fmt.Sprintf("Set frame_max = %d, RabbitMQ's default, in rabbitmq.conf: messages with more headers than fit are parked.", usualFrame)})
	}
	return all
}

func sizes(s *Scene) []Finding {
	all := frames(s)
	for _, q := range s.workQueues() {
		if q.Messages > 0 && q.Bytes/int64(q.Messages) > s.largest() {
			all = append(all, Finding{Queue: q.Name, Status: Warning, What: fmt.Sprintf("its messages have %s on average, and RabbitMQ %s takes %s unless max_message_size says otherwise", size(q.Bytes/int64(q.Messages)), s.Version, size(s.largest())),
				Remedy: "Set max_message_size in rabbitmq.conf."})
		}
	}
	if len(all) == 0 {
		frames := "any size"
		if s.FrameMax > 0 {
			frames = size(int64(s.FrameMax))
		}
		all = []Finding{{Status: OK, What: fmt.Sprintf("frames of %s; messages of %s, unless max_message_size says otherwise, which RabbitMQ does not tell", frames, size(s.largest()))}}
	}
	return all
}
