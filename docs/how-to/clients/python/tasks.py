# A Celery task of the queue orders. What its own retry does not cure is reported.
import os
import urllib.request

from amqp import Message
from celery import Celery
from celery.exceptions import TaskPredicate, Terminated
from celery.worker.request import Request
from kombu import Queue

app = Celery("shop", broker=os.environ["AMQP_URL"])
app.conf.task_default_queue = "orders"
app.conf.task_queues = [Queue("orders", no_declare=True)]  # enrolled
app.conf.worker_enable_remote_control = False  # or it declares queues of its own
app.conf.task_acks_late = True  # or Celery acknowledges before the task runs
app.conf.task_acks_on_failure_or_timeout = False  # reject what fails
app.conf.broker_transport_options = {"confirm_publish": True}


class Reported(Request):
    def on_failure(self, exc_info, *args, **kwargs):
        error = getattr(exc_info.exception, "exc", None) or exc_info.exception
        if not isinstance(error, (TaskPredicate, Terminated)):  # Retry, Ignore, Reject
            try:
                self.report(error)
            except Exception as e:
                print("not reported:", e)
        super().on_failure(exc_info, *args, **kwargs)  # rejects it, unless it was acknowledged

    def report(self, error):
        message, info = self._message, self._message.delivery_info
        own = info["exchange"].startswith("redrive.")  # otherwise copied from another message
        headers = {
            "x-redrive-exchange": info["exchange"],  # as first published: a returned
            "x-redrive-routing-key": info["routing_key"],  # message has them already
            **{k: v for k, v in message.headers.items() if own or not k.startswith("x-redrive-")},
            "x-redrive-error": f"{type(error).__name__}: {error}"[:1000],
        }
        if getattr(error, "retry_after", None):
            headers["x-redrive-delay"] = int(error.retry_after) * 1000
        if getattr(error, "park", None):
            headers["x-redrive-park"] = error.park
        properties = {**message.properties, "delivery_mode": 2, "expiration": None, "user_id": None,
                      "application_headers": headers}
        # A channel of its own: one that RabbitMQ has closed once waits for ever for a confirm.
        with self.app.pool.acquire(block=True) as connection, connection.channel() as channel:
            channel.basic_publish(Message(message.body, **properties), "redrive.failures", "orders", True)
        self.acknowledge()


@app.task(bind=True, Request=Reported)
def pay(self, order):
    request = urllib.request.Request(os.environ["PAYMENTS_URL"], order.encode())
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as e:
        if e.code == 503 and self.request.retries < 1:
            raise self.retry(countdown=1)
        error = RuntimeError(e.read().decode())
        error.retry_after = e.headers["Retry-After"]  # seconds
        error.park = "the customer is gone" if e.code == 410 else None
        raise error
