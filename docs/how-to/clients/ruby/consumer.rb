# A consumer of the queue orders. What fails is reported to Redrive with its error.
require "bunny"
require "json"
require "net/http"

QUEUE = "orders"

class Refused < StandardError
  attr_accessor :retry_after, :park
end

# Your code: it raises an error when it fails.
def pay(body, attempt)
  answer = Net::HTTP.post(URI(ENV.fetch("PAYMENTS_URL")), body, "X-Attempt" => attempt.to_s)
  return if answer.is_a?(Net::HTTPSuccess)

  error = Refused.new(answer.body)
  error.retry_after = answer["Retry-After"].to_i # seconds, 0 for none
  error.park = "the customer is gone" if answer.code == "410"
  raise error
end

# The headers. Redrive's are the message's own only when Redrive delivered it:
# otherwise they were copied from another message.
def own_headers(delivery, properties)
  headers = properties.headers || {}
  return headers if delivery.exchange.start_with?("redrive.")

  headers.reject { |name, _| name.start_with?("x-redrive-") }
end

# Hands the message to Redrive. When it raises, the message was not acknowledged,
# and RabbitMQ delivers it again.
def report(failures, delivery, properties, body, error)
  kept = properties.to_h.except(:expiration, :user_id) # must not expire on its way; only one's own
  headers = {
    "x-redrive-exchange" => delivery.exchange, # as first published: a returned
    "x-redrive-routing-key" => delivery.routing_key, # message has them already
    **own_headers(delivery, properties)
  }
  headers["x-redrive-error"] = error.message[0, 1000]
  if error.is_a?(Refused)
    headers["x-redrive-delay"] = error.retry_after * 1000 if error.retry_after.positive?
    headers["x-redrive-park"] = error.park if error.park
  end
  failures.publish(body, kept.merge(routing_key: QUEUE, headers: headers, persistent: true, mandatory: true))
  confirmed = failures.channel.wait_for_confirms
  raise "RabbitMQ refused the report" unless confirmed
end

connection = Bunny.new(ENV.fetch("AMQP_URL")).start
channel = connection.create_channel
channel.confirm_select
channel.prefetch(10)
# An error in a consumer would only be logged: end, and RabbitMQ delivers again what
# was not acknowledged.
channel.on_uncaught_exception { |error, _| warn error.full_message; exit! 1 }
failures = channel.exchange("redrive.failures", passive: true)
# RabbitMQ says so before it confirms, so nothing is acknowledged then.
failures.on_return { warn "redrive.failures leads to no queue"; exit! 1 }

channel.queue(QUEUE, passive: true).subscribe(manual_ack: true, block: true) do |delivery, properties, body|
  attempt = own_headers(delivery, properties).fetch("x-redrive-attempt", 0) # failures so far
  begin
    JSON.parse(body)
  rescue JSON::ParserError
    # No error text: just reject, never with requeue = true.
    channel.reject(delivery.delivery_tag, false)
    next
  end
  begin
    pay(body, attempt)
  rescue StandardError => e
    report(failures, delivery, properties, body, e)
  end
  channel.ack(delivery.delivery_tag)
end
