# A consumer of the queue orders. What fails is reported to Redrive with its error.
import json
import os
import urllib.error
import urllib.request

import pika

QUEUE = "orders"


def pay(body, attempt):
    """Your code: it raises an exception when it fails."""
    request = urllib.request.Request(os.environ["PAYMENTS_URL"], body, {"X-Attempt": str(attempt)})
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as e:
        error = RuntimeError(e.read().decode())
        wait = e.headers.get("Retry-After", "")
        error.retry_after = int(wait) if wait.isdecimal() else 0  # seconds
        error.park = "the customer is gone" if e.code == 410 else None
        raise error from e


def on_message(channel, method, properties, body):
    properties.headers = own_headers(method, properties)
    attempt = properties.headers.get("x-redrive-attempt", 0)  # failures so far
    try:
        json.loads(body)
    except ValueError:
        # No error text: just reject, never with requeue=True.
        channel.basic_reject(method.delivery_tag, requeue=False)
        return
    try:
        pay(body, attempt)
    except Exception as e:
        report(channel, method, properties, body, e)
    channel.basic_ack(method.delivery_tag)


def own_headers(method, properties):
    """The headers. Redrive's are the message's own only when Redrive delivered
    it: otherwise they were copied from another message."""
    headers = properties.headers or {}
    if method.exchange.startswith("redrive."):
        return headers
    return {k: v for k, v in headers.items() if not k.startswith("x-redrive-")}


def report(channel, method, properties, body, error):
    """Hands the message to Redrive. When it raises, the message was not
    acknowledged, and RabbitMQ delivers it again."""
    properties.headers = {
        "x-redrive-exchange": method.exchange,  # as first published: a returned
        "x-redrive-routing-key": method.routing_key,  # message has them already
        **properties.headers,
    }
    properties.headers["x-redrive-error"] = str(error)[:1000]
    if getattr(error, "retry_after", 0):
        properties.headers["x-redrive-delay"] = error.retry_after * 1000
    if getattr(error, "park", None):
        properties.headers["x-redrive-park"] = error.park
    properties.delivery_mode = 2  # on disk
    properties.expiration = None  # it must not expire on its way
    properties.user_id = None  # RabbitMQ takes only one's own
    # The channel has confirm_delivery and the message is mandatory: this returns
    # when Redrive's queue has it.
    channel.basic_publish("redrive.failures", QUEUE, body, properties, mandatory=True)


connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = connection.channel()
channel.confirm_delivery()
channel.basic_qos(prefetch_count=10)
channel.basic_consume(QUEUE, on_message)
channel.start_consuming()
