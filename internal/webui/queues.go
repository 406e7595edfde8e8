package webui

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// queuesData is the list of queues.
type queuesData struct {
	inspect.QueuePage
	Name, Policy string // what the list is filtered by
	Columns      []sortColumn
	Silent       bool // RabbitMQ does not answer
	Next         string
	Filtered     bool
}

// sortColumn is one of the list that can be sorted by.
type sortColumn struct {
	Title, Explained string
	Number           bool
	To               string // sorts by it, or the other way round
	Order            string // as aria-sort has it; "": it is not sorted by this one
}

// queueColumns are what the list can be sorted by: the value in the URL, and the title.
var queueColumns = []struct{ by, title, explained string }{
	{"name", "Queue", ""}, {"consumers", "Consumers", ""}, {"ready", "Ready", "In RabbitMQ, for consumers"}, {"unacked", "Unacked", "Delivered to consumers and not acknowledged yet"},
	{"waiting", "Waiting", "In Redrive, in their delay"}, {"parked", "Parked", "Until a person replays or discards them"}, {"failed", "Failed/min", "In the last minute"}, {"retried", "Retried/min", "In the last minute"},
}

// fromRabbitMQ are the columns that are sorted by only where one page has all queues.
var fromRabbitMQ = []string{"consumers", "ready", "unacked"}

func (s *server) queues(r *http.Request, c auth.Caller) (view, error) {
	in := r.URL.Query()
	q := inspect.QueueQuery{Name: strings.TrimSpace(in.Get("name")), Policy: in.Get("policy"), Sort: in.Get("sort"), Descending: in.Get("desc") != "", After: in.Get("after"), Limit: rowsPerPage}
	page, err := s.console.Queues(r.Context(), c, q)
	d := queuesData{QueuePage: page, Name: q.Name, Policy: q.Policy, Filtered: q.Name != "" || q.Policy != "", Columns: columnsOf(q, page.Total <= rowsPerPage)}
	if page.After != "" {
		d.Next = queuesURL(q, q.Sort, q.Descending, page.After)
	}
	for _, q := range page.Queues {
		d.Silent = d.Silent || q.Broker == nil
	}
	return view{template: "queues", title: "Queues", nav: "/queues", command: "redrive queues", data: d}, err
}

// columnsOf are the columns for a list that is sorted as q says; whole: one page has all queues.
func columnsOf(q inspect.QueueQuery, whole bool) (all []sortColumn) {
	for _, c := range queueColumns {
		at := sortColumn{Title: c.title, Explained: c.explained, Number: c.by != "name"}
		sorted := q.Sort == c.by || q.Sort == "" && c.by == "name"
		if sorted {
			at.Order = map[bool]string{false: "ascending", true: "descending"}[q.Descending]
		}
		if whole || !slices.Contains(fromRabbitMQ, c.by) {
			desc := at.Number // the largest numbers first, and names from a to z
			if sorted {
				desc = !q.Descending
			}
			at.To = queuesURL(q, c.by, desc, "")
		}
		all = append(all, at)
	}
	return all
}

// queuesURL is the list with the filter of q.
func queuesURL(q inspect.QueueQuery, sort string, desc bool, after string) string {
	v := url.Values{}
	set := func(name, value string) {
		if value != "" {
			v.Set(name, value)
		}
	}
	set("name", q.Name)
	set("policy", q.Policy)
	set("after", after)
	if set("sort", sort); desc {
		v.Set("desc", "1")
	}
	return "/queues?" + v.Encode()
}

// queueData is the page of one queue.
type queueData struct {
	inspect.QueueDetail
	Chart    chart
	Calendar calendar
	Findings []inspect.Finding // what the doctor found to look at
	Checked  bool              // the doctor has run, and this caller may see what it found
}

func (s *server) queue(r *http.Request, c auth.Caller) (view, error) {
	name := r.PathValue("queue")
	if in := r.URL.Query(); in.Has("name") {
		name = in.Get("name")
	}
	q, err := s.console.Queue(r.Context(), c, name)
	if err != nil {
		return view{}, err
	}
	d := queueData{QueueDetail: q, Chart: flowChart(q.Hour, q.Now), Calendar: calendarOf(q.Calendar)}
	if q.Doctor != nil {
		d.Checked, d.Findings = q.Doctor.At != nil && q.Doctor.Error == "", troubling(q.Doctor.Findings)
	}
	return view{template: "queue", title: "Queue " + short(60, name), nav: "/queues", command: command(append([]string{"redrive", "messages", "list"}, positional(queryOf("queue", name))...)...), data: d}, nil
}
