// A consumer of the queue orders. What fails is reported to Redrive with its error.

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Envelope;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.HashMap;
import java.util.Map;

public class Consumer {
    static final String QUEUE = "orders";
    static final HttpClient HTTP = HttpClient.newHttpClient();

    static class Refused extends Exception {
        final long retryAfter; // seconds, 0 for none
        final String park;

        Refused(HttpResponse<String> answer) {
            super(answer.body());
            retryAfter = answer.headers().firstValue("Retry-After").filter(s -> s.matches("\\d+"))
                .map(Long::parseLong).orElse(0L);
            park = answer.statusCode() == 410 ? "the customer is gone" : null;
        }
    }

    /** Your code: it throws when it fails. */
    static void pay(byte[] body, Object attempt) throws Exception {
        HttpResponse<String> answer = HTTP.send(
            HttpRequest.newBuilder(URI.create(System.getenv("PAYMENTS_URL"))).header("X-Attempt", "" + attempt)
                .POST(HttpRequest.BodyPublishers.ofByteArray(body)).build(),
            HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() >= 300) {
            throw new Refused(answer);
        }
    }

    /**
     * The headers. Redrive's are the message's own only when Redrive delivered it: otherwise they were copied from
     * another message.
     */
    static Map<String, Object> ownHeaders(Envelope from, AMQP.BasicProperties properties) {
        Map<String, Object> own = properties.getHeaders() == null ? new HashMap<>() : new HashMap<>(properties.getHeaders());
        if (!from.getExchange().startsWith("redrive.")) {
            own.keySet().removeIf(name -> name.startsWith("x-redrive-"));
        }
        return own;
    }

    static void onMessage(Channel channel, Envelope from, AMQP.BasicProperties properties, byte[] body) throws Exception {
        Map<String, Object> headers = ownHeaders(from, properties);
        Object attempt = headers.getOrDefault("x-redrive-attempt", 0); // failures so far
        if (body.length == 0 || body[0] != '{') {
            // No error text: just reject, never with requeue = true.
            channel.basicReject(from.getDeliveryTag(), false);
            return;
        }
        try {
            pay(body, attempt);
        } catch (Exception e) {
            report(channel, from, properties, headers, body, e);
        }
        channel.basicAck(from.getDeliveryTag(), false);
    }

    /** Hands the message to Redrive. When it throws, the message was not acknowledged. */
    static void report(Channel channel, Envelope from, AMQP.BasicProperties properties, Map<String, Object> headers,
                       byte[] body, Exception error) throws Exception {
        Map<String, Object> all = new HashMap<>(headers);
        all.putIfAbsent("x-redrive-exchange", from.getExchange()); // as first published: a returned
        all.putIfAbsent("x-redrive-routing-key", from.getRoutingKey()); // message has them already
        String text = String.valueOf(error.getMessage());
        all.put("x-redrive-error", text.substring(0, Math.min(text.length(), 1000)));
        if (error instanceof Refused refused) {
            if (refused.retryAfter > 0) all.put("x-redrive-delay", refused.retryAfter * 1000);
            if (refused.park != null) all.put("x-redrive-park", refused.park);
        }
        AMQP.BasicProperties kept = properties.builder().headers(all)
            .deliveryMode(2) // on disk
            .expiration(null) // it must not expire on its way
            .userId(null) // RabbitMQ takes only one's own
            .build();
        channel.basicPublish("redrive.failures", QUEUE, true, kept, body);
        channel.waitForConfirmsOrDie(30_000);
    }

    /** Ends the process: RabbitMQ delivers again what was not acknowledged. */
    static void die(Object why) {
        System.err.println(why);
        Runtime.getRuntime().halt(1);
    }

    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv("AMQP_URL"));
        Channel channel = factory.newConnection().createChannel();
        channel.confirmSelect();
        // RabbitMQ says so before it confirms, so nothing is acknowledged then.
        channel.addReturnListener((code, text, exchange, key, properties, body) -> die("redrive.failures leads to no queue"));
        channel.basicQos(10);
        channel.basicConsume(QUEUE, false, (consumerTag, delivery) -> {
            try {
                onMessage(channel, delivery.getEnvelope(), delivery.getProperties(), delivery.getBody());
            } catch (Exception e) {
                die(e);
            }
        }, consumerTag -> die("the queue is gone"));
    }
}
