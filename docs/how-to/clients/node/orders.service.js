// A NestJS provider that consumes the queue orders with Rascal, and reports what fails.
const Rascal = require('rascal');

const config = Rascal.withDefaultConfig({
  vhosts: { shop: {
    connection: process.env.AMQP_URL,
    exchanges: { 'redrive.failures': { assert: false } },
    queues: { orders: { assert: false } },
  } },
  publications: { redrive: { vhost: 'shop', exchange: 'redrive.failures' } },
  subscriptions: { orders: { vhost: 'shop', queue: 'orders', contentType: 'application/json' } },
});

class Orders {
  async onModuleInit() {
    this.broker = await Rascal.BrokerAsPromised.create(config);
    this.broker.on('error', console.error);
    const orders = await this.broker.subscribe('orders');
    orders.on('error', console.error).on('message', (message, order, ackOrNack) => {
      const { fields, properties } = message;
      for (const name of Object.keys(properties.headers)) { // copied from another message
        if (/^x-redrive-/.test(name) && !/^redrive\./.test(fields.exchange)) delete properties.headers[name];
      }
      const attempt = properties.headers['x-redrive-attempt'] ?? 0; // failures so far
      this.pay(order, attempt).then(() => ackOrNack(), (error) => ackOrNack(error, this.report(message, error)));
    });
  }

  onApplicationShutdown() { return this.broker.shutdown(); }

  async pay(order, attempt) { // your code: it throws when it fails
    const answer = await fetch(process.env.PAYMENTS_URL, {
      method: 'POST', body: JSON.stringify(order), headers: { 'X-Attempt': attempt },
    });
    if (answer.ok) return;
    const error = new Error(await answer.text());
    error.retryAfter = answer.headers.get('Retry-After'); // seconds
    error.park = answer.status === 410 ? 'the customer is gone' : undefined;
    throw error;
  }

  report({ fields, properties }, error) {
    properties.expiration = undefined; // it must not expire on its way
    properties.userId = undefined; // RabbitMQ takes only one's own
    const headers = {
      'x-redrive-exchange': fields.exchange, // as first published: a returned
      'x-redrive-routing-key': fields.routingKey, // message has them already
      ...properties.headers,
      'x-redrive-error': `${error.name}: ${error.message}`.slice(0, 1000),
    };
    if (error.retryAfter > 0) headers['x-redrive-delay'] = error.retryAfter * 1000;
    if (error.park) headers['x-redrive-park'] = error.park;
    const options = { routingKey: 'orders', options: { headers } };
    return { strategy: 'forward', publication: 'redrive', restoreRoutingHeaders: false, options };
  }
}

module.exports = { Orders };
