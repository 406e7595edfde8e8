package webui_test

import (
	"fmt"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
)

// A queue that waits looks as if it worked, unless the page says why.
func TestThePageShowsEachWaitReason(t *testing.T) {
	now := time.Now()
	shown := map[throttle.WaitReason]string{
		throttle.WhyPerson: `<span class="state paused">paused</span>`, throttle.WhyBreaker: "breaker open", throttle.WhyNoConsumer: "no consumers",
		throttle.WhyRate: "limited by rate", throttle.WhyInFlight: "limited by in_flight", throttle.WhyUnreachable: "the queue is full",
	}
	for _, why := range throttle.WaitReasons {
		shop := &webtest.Shop{Now: now, Hour: make([]inspect.Flow, 60), Plans: map[string]operations.Plan{}, QueueList: []inspect.Queue{webtest.WaitingQueue(why, now)}}
		page := get(scene{shop: shop, caller: auth.Caller{Name: "dana", Role: auth.Viewer}}.handler(), "/queues").Body.String()
		if want := shown[why]; want == "" || !strings.Contains(page, want) || strings.Contains(page, "as due") {
			t.Errorf("%s: the page of the queues does not show %q", why, want)
		}
	}
}

// What only the management API knows is not shown as none.
func TestThePageShowsWhatIsNotKnown(t *testing.T) {
	unacked := 0
	for want, at := range map[string]*inspect.AtBroker{
		`<td class="n">5</td><td class="n">0</td>`:                                  {Exists: true, Kind: "quorum", Consumers: 2, Ready: 5, Unacked: &unacked},
		`<td class="n">5</td><td class="n"><span class="dim">not known</span></td>`: {Exists: true, Consumers: 2, Ready: 5},
	} {
		shop := &webtest.Shop{Now: time.Now(), Hour: make([]inspect.Flow, 60), Plans: map[string]operations.Plan{}, QueueList: []inspect.Queue{{Name: "orders", Broker: at}}}
		if page := get(scene{shop: shop, caller: auth.Caller{Name: "dana", Role: auth.Viewer}}.handler(), "/queues").Body.String(); !strings.Contains(page, want) {
			t.Errorf("the page of the queues does not show %q", want)
		}
	}
}

// shopWith is a shop with some queues, looked at by an operator.
func shopWith(queues ...inspect.Queue) scene {
	shop := &webtest.Shop{Now: time.Now(), Hour: make([]inspect.Flow, 60), Plans: map[string]operations.Plan{}, QueueList: queues}
	return scene{shop: shop, caller: auth.Caller{Name: "dana", Role: auth.Operator}}
}

// Overview, health and the page of a queue say the same of what is wrong, and none says that
// nothing is.
func TestEachPageSaysWhatIsWrong(t *testing.T) {
	s := shopWith(inspect.Queue{Name: "a/b", Parked: 834})
	paths := []string{"/", "/health", "/queues/a%2Fb"}
	for _, path := range paths {
		if page := get(s.handler(), path).Body.String(); !strings.Contains(page, `data-health="ok"`) {
			t.Errorf("%s does not say that all is well", path)
		}
	}
	s.shop.Reasons = []inspect.HealthReason{{State: inspect.Wrong, Kind: "breaker", Queue: "a/b", Text: "breaker open: <all> failed"}, {State: inspect.Attention, Kind: "parked", Queue: "a/b", Text: "834 messages are parked"}}
	for _, path := range append(paths, "/messages") {
		page := get(s.handler(), path).Body.String()
		if path != "/messages" && !strings.Contains(page, `data-health="wrong"`) || strings.Contains(page, `data-health="ok"`) || !strings.Contains(page, `<a href="/queues/a%2Fb"><bdi>a/b</bdi></a>: <bdi>breaker open: &lt;all&gt; failed</bdi>`) {
			t.Errorf("%s does not say what is wrong:\n%s", path, page)
		}
		if !strings.Contains(page, `<span class="badge is-wrong">2<span`) {
			t.Errorf("%s: the navigation does not count what is to look at", path)
		}
	}
}

// A name of a queue can be anything, and its page is found all the same.
func TestEachQueueHasItsPage(t *testing.T) {
	for _, name := range []string{"orders", "a/b", "..", ".", "", "pause", "-", `<b>"'&?#%2F`, "día\u202e"} {
		s := shopWith(inspect.Queue{Name: name, Pause: &inspect.QueuePause{By: "dana"}})
		page := get(s.handler(), "/queues").Body.String()
		link := regexp.MustCompile(`<a data-open href="([^"]+)"`).FindStringSubmatch(page)
		if link == nil {
			t.Fatalf("%q is not in the list:\n%s", name, page)
		}
		w := get(s.handler(), html.UnescapeString(link[1]))
		if w.Code != 200 || !strings.Contains(w.Body.String(), "paused") {
			t.Errorf("%q: %s is %d", name, link[1], w.Code)
		}
		done := send(s.handler(), "/queues/resume", url.Values{"queue": {name}, "one": {"1"}})
		if to := done.Header().Get("Location"); done.Code != 303 || get(s.handler(), to).Code != 200 || !strings.Contains(get(s.handler(), to).Body.String(), "retries resumed") {
			t.Errorf("%q: resuming it leads to %q", name, to)
		}
		if s.shop.QueueList[0].Pause != nil {
			t.Errorf("%q is still paused", name)
		}
	}
}

// The list can be ordered by its columns, the other way round by the one that it is ordered by,
// and what is filtered stays so.
func TestTheListOfQueuesIsSorted(t *testing.T) {
	s := shopWith(inspect.Queue{Name: "a", Waiting: 1}, inspect.Queue{Name: "ab", Waiting: 3}, inspect.Queue{Name: "c", Waiting: 2})
	names := func(path string) (all []string, page string) {
		page = get(s.handler(), path).Body.String()
		for _, m := range regexp.MustCompile(`<a data-open href="/queues/(\w+)"`).FindAllStringSubmatch(page, -1) {
			all = append(all, m[1])
		}
		return all, page
	}
	all, page := names("/queues?name=a")
	if !slices.Equal(all, []string{"a", "ab"}) || !strings.Contains(page, "2 queues match") || !strings.Contains(page, `value="a"`) {
		t.Errorf("it has %q:\n%s", all, page)
	}
	for _, want := range []string{`aria-sort="ascending"><a href="/queues?desc=1&amp;name=a&amp;sort=name">`, `<a href="/queues?desc=1&amp;name=a&amp;sort=waiting"`, `<a href="/queues?desc=1&amp;name=a&amp;sort=consumers"`} {
		if !strings.Contains(page, want) {
			t.Errorf("it has no %s:\n%s", want, page)
		}
	}
	if all, page = names("/queues?sort=waiting&desc=1"); !slices.Equal(all, []string{"ab", "c", "a"}) || !strings.Contains(page, `aria-sort="descending"><a href="/queues?sort=waiting"`) {
		t.Errorf("it has %q:\n%s", all, page)
	}
	for i := range 200 {
		s.shop.QueueList = append(s.shop.QueueList, inspect.Queue{Name: fmt.Sprint("x", i)})
	}
	if _, page = names("/queues?sort=waiting&desc=1"); !strings.Contains(page, `rel="next" href="/queues?after=x&amp;desc=1&amp;sort=waiting"`) || strings.Contains(page, "sort=consumers") {
		t.Errorf("of two pages:\n%s", page)
	}
}

// What is retried now, and what was, do not depend on how much of the current minute is over.
func TestTheChartLeavesOutTheCurrentMinute(t *testing.T) {
	s := shopWith()
	for i := range s.shop.Hour {
		s.shop.Hour[i].Failed = 100 + int64(i)
	}
	page := get(s.handler(), "/").Body.String()
	rows := regexp.MustCompile(`<td class="n">(1\d\d)</td>`).FindAllStringSubmatch(page, -1)
	if len(rows) != 59 || rows[58][1] != "158" {
		t.Errorf("the chart has %d minutes, the last with %v", len(rows), rows[len(rows)-1:])
	}
	at := s.shop.Now.Truncate(time.Minute).Add(-time.Minute).UTC().Format(time.RFC3339)
	if !strings.Contains(page, at) || strings.Contains(page, `<time datetime="`+s.shop.Now.Truncate(time.Minute).UTC().Format(time.RFC3339)+`" data-clock="short"`) {
		t.Errorf("its last minute is not %s", at)
	}
}

// Times of the calendar are as fine as its slots.
func TestTheCalendarsTimes(t *testing.T) {
	from := time.Date(2026, 11, 24, 23, 0, 0, 0, time.UTC)
	for length, want := range map[time.Duration]string{5 * time.Second: `data-clock="seconds">23:00:05</time>`, time.Minute: `data-clock="short">23:01</time>`, 48 * time.Hour: `data-clock="day">26 Nov 23:00</time>`} {
		s := shopWith()
		s.shop.Calendar = []inspect.Slot{{From: from.Add(-time.Hour), To: from, Count: 7, Overdue: true}, {From: from, To: from.Add(length), Count: 5, AtLeast: true}, {From: from.Add(length), To: from.AddDate(10, 0, 0), Count: 3, Later: true}}
		page := get(s.handler(), "/").Body.String()
		for _, want := range []string{want, `<th scope="row">overdue</th>`, `<th scope="row">later</th>`, `<dt>Overdue</dt><dd>7</dd>`} {
			if !strings.Contains(page, want) {
				t.Errorf("with slots of %s it has no %s", length, want)
			}
		}
	}
}

// The page of policies says which one a name has, also that of a queue that does not exist yet.
func TestWhichPolicyAQueueWouldGet(t *testing.T) {
	s := scenes()[0]
	for queue, want := range map[string]string{"orders.new": `<code><bdi>orders.*</bdi></code> matches first`, "payments": `<code><bdi>payments</bdi></code> matches`,
		"orders.capture.v1": `What fails in <b><bdi>orders.capture.v1</bdi></b> is retried to <b><bdi>orders.capture</bdi></b>, which has the policy`, "nothing": "No policy matches"} {
		if page := get(s.handler(), "/policies?queue="+queue).Body.String(); !strings.Contains(page, want) {
			t.Errorf("of %s it does not say %q", queue, want)
		}
	}
	s.caller.Queues = []string{"mail.*"}
	if page := get(s.handler(), "/policies?queue=orders.new").Body.String(); !strings.Contains(page, "You may not see") || strings.Contains(page, "matches first") {
		t.Error("it tells of others' queues")
	}
}

// The page of policies shows all that decides about a message, and the page of a queue what its
// policy's rules do.
func TestThePageShowsWhatAPolicyDoes(t *testing.T) {
	s := scenes()[0]
	rules := []string{`<li><b><bdi>invalid</bdi></b> <code><bdi>error:/invalid IBAN|validation/</bdi></code>: park, severity info <span class="dim"><bdi>the data is wrong, ask the shop</bdi></span></li>`,
		`<li><b><bdi>large</bdi></b> <code><bdi>body.order.total:&gt;10000</bdi></code>: as the policy says, severity critical</li>`}
	for path, wants := range map[string][]string{
		"/policies": append(rules, "<dd>2d after the first failure at most</dd>", "<dd>30d, then discarded</dd>", "<dt>Priority</dt><dd>1 for retries</dd>",
			`<dt>Redirects</dt><dd><bdi>orders.capture.v1</bdi> to <a href="/queues/orders.capture"><bdi>orders.capture</bdi></a></dd>`, "rules:\n  - {name: invalid"),
		"/queues/orders.capture": rules,
	} {
		page := get(s.handler(), path).Body.String()
		for _, want := range wants {
			if !strings.Contains(page, want) {
				t.Errorf("%s has no %s", path, want)
			}
		}
	}
}

// Operators run the doctor on the page of health, which shows what it found, with the remedy.
func TestTheDoctorOnThePage(t *testing.T) {
	s := scenes()[0]
	page := get(s.handler(), "/health").Body.String()
	for _, want := range []string{`id="run-doctor"`, "<code>rabbitmqctl set_policy redrive &#39;^mail.send$&#39; ", "Start its consumers.", "3 findings", "2 checks are ok"} {
		if !strings.Contains(page, want) {
			t.Errorf("it has no %q", want)
		}
	}
	if worst, other := strings.Index(page, "it has no consumers"), strings.Index(page, "dead-letters at most once"); worst > other {
		t.Error("what is wrong is not first")
	}
	if of := get(s.handler(), "/queues/mail.send").Body.String(); !strings.Contains(of, "dead-letters at most once") || strings.Contains(of, "Start its consumers.") {
		t.Error("the page of a queue has not its findings")
	}
	if w := send(s.handler(), "/health/doctor", nil); w.Header().Get("Location") != "/health?did=doctor&n=1" || len(s.shop.Asked) != 1 {
		t.Errorf("it leads to %q", w.Header().Get("Location"))
	}
	if page := get(s.handler(), "/health").Body.String(); !strings.Contains(page, "The doctor runs") {
		t.Error("it does not say that it runs")
	}
	s.caller.Role = auth.Viewer
	if page := get(s.handler(), "/health").Body.String(); strings.Contains(page, "run-doctor") || strings.Contains(page, "Start its consumers.") {
		t.Error("a viewer is shown what the doctor found")
	}
}
