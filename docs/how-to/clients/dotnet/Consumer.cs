// A consumer of the queue orders. What fails is reported to Redrive with its error.
// RabbitMQ.Client 7.1 or later, in a project with implicit usings.
using System.Net;
using System.Net.Http;
using System.Text.Json;
using RabbitMQ.Client;
using RabbitMQ.Client.Events;

const string queue = "orders";
var http = new HttpClient();

var factory = new ConnectionFactory { Uri = new Uri(Environment.GetEnvironmentVariable("AMQP_URL")!) };
await using var connection = await factory.CreateConnectionAsync();
// With tracking, BasicPublishAsync returns when RabbitMQ has confirmed, and throws
// when it refuses the message or has no queue for it.
await using var channel = await connection.CreateChannelAsync(new CreateChannelOptions(
    publisherConfirmationsEnabled: true, publisherConfirmationTrackingEnabled: true));
await channel.BasicQosAsync(0, 10, false);
var consumer = new AsyncEventingBasicConsumer(channel);
consumer.ReceivedAsync += async (_, message) =>
{
    try { await OnMessage(message); }
    catch (Exception e) { Environment.FailFast("not acknowledged, RabbitMQ delivers it again", e); }
};
await channel.BasicConsumeAsync(queue, autoAck: false, consumer);
await Task.Delay(Timeout.Infinite);

// Your code: it throws when it fails.
async Task Pay(byte[] body, string attempt)
{
    var request = new HttpRequestMessage(HttpMethod.Post, Environment.GetEnvironmentVariable("PAYMENTS_URL"))
    { Content = new ByteArrayContent(body) };
    request.Headers.Add("X-Attempt", attempt);
    var answer = await http.SendAsync(request);
    if (answer.IsSuccessStatusCode) return;
    throw new Refused(await answer.Content.ReadAsStringAsync())
    {
        RetryAfter = answer.Headers.RetryAfter?.Delta,
        Park = answer.StatusCode == HttpStatusCode.Gone ? "the customer is gone" : null,
    };
}

async Task OnMessage(BasicDeliverEventArgs message)
{
    var body = message.Body.ToArray();
    var headers = OwnHeaders(message);
    headers.TryGetValue("x-redrive-attempt", out var attempt); // failures so far
    try { JsonDocument.Parse(body).Dispose(); }
    catch (JsonException)
    {
        // No error text: just reject, never with requeue: true.
        await channel.BasicRejectAsync(message.DeliveryTag, requeue: false);
        return;
    }
    try { await Pay(body, $"{attempt ?? 0}"); }
    catch (Exception e) { await Report(message, headers, body, e); }
    await channel.BasicAckAsync(message.DeliveryTag, multiple: false);
}

// The headers. Redrive's are the message's own only when Redrive delivered it: otherwise
// they were copied from another message.
Dictionary<string, object?> OwnHeaders(BasicDeliverEventArgs message)
{
    var own = message.Exchange.StartsWith("redrive.", StringComparison.Ordinal);
    return (message.BasicProperties.Headers ?? new Dictionary<string, object?>())
        .Where(h => own || !h.Key.StartsWith("x-redrive-", StringComparison.Ordinal))
        .ToDictionary(h => h.Key, h => h.Value);
}

// Hands the message to Redrive. When it throws, the message was not acknowledged.
async Task Report(BasicDeliverEventArgs message, Dictionary<string, object?> headers, byte[] body, Exception error)
{
    var properties = new BasicProperties(message.BasicProperties) { Persistent = true };
    properties.ClearExpiration(); // it must not expire on its way
    properties.ClearUserId(); // RabbitMQ takes only one's own
    headers.TryAdd("x-redrive-exchange", message.Exchange); // as first published: a returned
    headers.TryAdd("x-redrive-routing-key", message.RoutingKey); // message has them already
    headers["x-redrive-error"] = error.Message[..Math.Min(error.Message.Length, 1000)];
    if (error is Refused { RetryAfter: { } wait }) headers["x-redrive-delay"] = (long)wait.TotalMilliseconds;
    if (error is Refused { Park: { } why }) headers["x-redrive-park"] = why;
    properties.Headers = headers;
    await channel.BasicPublishAsync("redrive.failures", queue, mandatory: true, properties, body);
}

class Refused(string text) : Exception(text)
{
    public TimeSpan? RetryAfter { get; init; }
    public string? Park { get; init; }
}
