// A consumer of the queue orders. What fails is reported to Redrive with its error.
const amqp = require('amqplib');

const queue = 'orders';

// Your code: it throws when it fails.
async function pay(body, attempt) {
  const answer = await fetch(process.env.PAYMENTS_URL, {
    method: 'POST', body, headers: { 'X-Attempt': String(attempt) },
  });
  if (answer.ok) return;
  const error = new Error(await answer.text());
  error.retryAfter = Number(answer.headers.get('Retry-After')); // seconds
  error.park = answer.status === 410 ? 'the customer is gone' : undefined;
  throw error;
}

// The headers. Redrive's are the message's own only when Redrive delivered it:
// otherwise they were copied from another message.
function ownHeaders(message) {
  const headers = message.properties.headers ?? {};
  if (message.fields.exchange.startsWith('redrive.')) return headers;
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !name.startsWith('x-redrive-')));
}

async function onMessage(channel, message) {
  const headers = ownHeaders(message);
  const attempt = headers['x-redrive-attempt'] ?? 0; // failures so far
  try {
    JSON.parse(message.content);
  } catch {
    // No error text: just reject, never with requeue = true.
    channel.reject(message, false);
    return;
  }
  try {
    await pay(message.content, attempt);
  } catch (e) {
    await report(channel, message, headers, e);
  }
  channel.ack(message);
}

// Hands the message to Redrive: done when RabbitMQ has confirmed that it is in
// Redrive's queue. When it throws, the message was not acknowledged.
function report(channel, message, headers, error) {
  headers['x-redrive-exchange'] ??= message.fields.exchange; // as first published: a returned
  headers['x-redrive-routing-key'] ??= message.fields.routingKey; // message has them already
  headers['x-redrive-error'] = error.message.slice(0, 1000);
  if (error.retryAfter > 0) headers['x-redrive-delay'] = error.retryAfter * 1000;
  if (error.park) headers['x-redrive-park'] = error.park;
  const properties = {
    ...message.properties,
    headers,
    persistent: true,
    mandatory: true,
    expiration: undefined, // it must not expire on its way
    userId: undefined, // RabbitMQ takes only one's own
  };
  return new Promise((done, failed) => {
    channel.publish('redrive.failures', queue, message.content, properties,
      (refused) => (refused ? failed(refused) : done()));
  });
}

// Ends the process: RabbitMQ delivers again what was not acknowledged.
function die(error) {
  console.error(error);
  process.exit(1);
}

async function main() {
  const connection = await amqp.connect(process.env.AMQP_URL);
  connection.on('close', () => die('the connection was closed'));
  const channel = await connection.createConfirmChannel();
  // RabbitMQ says so before it confirms, so nothing is acknowledged then.
  channel.on('return', () => die('redrive.failures leads to no queue'));
  await channel.prefetch(10);
  await channel.consume(queue, (message) => onMessage(channel, message).catch(die));
}

main().catch(die);
