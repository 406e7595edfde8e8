# A Celery task of the queue orders. What its own retry does not cure is left to Redrive.
import os
import urllib.error
import urllib.request

from celery import Celery
from celery.exceptions import Reject
from kombu import Queue

app = Celery("shop", broker=os.environ["AMQP_URL"])
app.conf.task_default_queue = "orders"
app.conf.task_queues = [Queue("orders", no_declare=True)]  # enrolled
app.conf.worker_enable_remote_control = False  # or it declares queues of its own
app.conf.task_acks_late = True  # or Celery acknowledges before the task runs
# Or Celery does not notice that RabbitMQ refuses a message.
app.conf.broker_transport_options = {"confirm_publish": True}


@app.task(bind=True)
def pay(self, order):
    request = urllib.request.Request(os.environ["PAYMENTS_URL"], order.encode())
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as e:
        if e.code == 503 and self.request.retries < 1:
            raise self.retry(countdown=1)
        raise Reject(e, requeue=False)
