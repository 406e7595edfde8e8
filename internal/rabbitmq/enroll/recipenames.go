package enroll

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// recipeNames are the names of a recipe's parts where a person chooses no others.
var recipeNames = map[RecipeKind]map[string]string{
	RetryQueue:    {"dead-letter-exchange": "{queue}-dead-letters", "retry-queue": "{queue}-retry-{seconds}"},
	RetryExchange: {"work-exchange": "{queue}-work", "retry-exchange": "{queue}-retry", "retry-queue": "{queue}-retry"},
	WaitExchange: {"error-exchange": "{queue}-error", "error-queue": "{queue}-error", "wait-exchange": "{queue}-wait",
		"wait-queue": "{queue}-wait", "requeue-exchange": "{queue}-requeue"},
}

// PartsOf lists the parts of a recipe and their names.
func PartsOf(kind RecipeKind) (all []string) {
	for _, part := range slices.Sorted(maps.Keys(recipeNames[kind])) {
		all = append(all, part+"="+recipeNames[kind][part])
	}
	return all
}

const maxNameBytes = 255 // of an AMQP short string

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

// chooseNames fills in the templates.
func (r *Recipe) chooseNames(chosen map[string]string) error {
	templates := maps.Clone(recipeNames[r.kind])
	for part, template := range chosen {
		if _, known := templates[part]; !known {
			return fmt.Errorf("there is no part %q: expected %s", part, strings.Join(slices.Sorted(maps.Keys(templates)), ", "))
		}
		templates[part] = template
	}
	r.name = map[string]string{}
	for _, part := range slices.Sorted(maps.Keys(templates)) {
		template := templates[part]
		if part == "retry-queue" && r.kind == RetryQueue {
			for _, d := range r.delays {
				name, err := fill(part, template, r.queue, d)
				if err != nil {
					return err
				}
				r.retries = append(r.retries, name)
			}
			continue
		}
		name, err := fill(part, template, r.queue, 0)
		if err != nil {
			return err
		}
		r.name[part] = name
	}
	return nil
}

// fill makes a name of a template; delay 0 stands for none.
func fill(part, template, queue string, d time.Duration) (name string, err error) {
	name = placeholder.ReplaceAllStringFunc(template, func(p string) string {
		switch {
		case p == "{queue}":
			return queue
		case d > 0 && p == "{seconds}" && d%time.Second == 0:
			return strconv.Itoa(int(d / time.Second))
		case d > 0 && p == "{seconds}":
			err = hint.Errorf("use {ms}", "%s=%s: a delay of %s is no whole number of seconds", part, template, policy.FormatDuration(d))
		case d > 0 && p == "{ms}":
			return strconv.FormatInt(d.Milliseconds(), 10)
		case d > 0:
			err = fmt.Errorf("%s=%s: %s is no placeholder: expected {queue}, {seconds} or {ms}", part, template, p)
		default:
			err = fmt.Errorf("%s=%s: %s is no placeholder here: expected {queue}", part, template, p)
		}
		return ""
	})
	switch {
	case err != nil:
		return "", err
	case name == "":
		return "", fmt.Errorf("%s: the name is empty", part)
	case len(name) > maxNameBytes:
		return "", hint.Errorf("choose a shorter one", "%s: the name is %d bytes long, and RabbitMQ's limit is %d: %.60q…", part, len(name), maxNameBytes, name)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return "", fmt.Errorf("%s: the name %q has control characters or is not UTF-8", part, name)
	case strings.HasPrefix(name, "amq."):
		return "", fmt.Errorf("%s: the name %q is RabbitMQ's own: only it declares what begins with amq.", part, name)
	case wire.OwnQueue(name) || name == wire.ExchangeDeadLetters:
		return "", fmt.Errorf("%s: the name %q is one of Redrive's own", part, name)
	}
	return name, nil
}

// checkNames refuses one name for two exchanges or for two queues. An exchange and a queue may have
// the same.
func (r *Recipe) checkNames() error {
	exchanges, queues := map[string]bool{}, map[string]bool{r.queue: true}
	for _, e := range r.topology.Exchanges {
		if exchanges[e.Name] {
			return hint.Errorf("choose different names by --names", "two exchanges would have the name %q", e.Name)
		}
		exchanges[e.Name] = true
	}
	for _, q := range r.topology.Queues {
		switch {
		case q.Name == r.queue:
			return hint.Errorf("choose a different name by --names", "the work queue has the name %q already", q.Name)
		case queues[q.Name]:
			return hint.Errorf("choose a template with {seconds} or {ms}", "two queues would have the name %q", q.Name)
		}
		queues[q.Name] = true
	}
	return nil
}

func hasExchange(t delay.Topology, name string) bool {
	return slices.ContainsFunc(t.Exchanges, func(e delay.Exchange) bool { return e.Name == name })
}

// checkExisting refuses an exchange or a queue that exists and is not as the recipe needs it: before
// anything is declared, since RabbitMQ would refuse it in the middle.
func (r *Recipe) checkExisting(ctx context.Context, m *management.Client) error {
	d := management.Define("", r.topology)
	for _, e := range d.Exchanges {
		is, err := m.Exchange(ctx, e.Name)
		switch {
		case errors.Is(err, management.ErrNotFound):
		case err != nil:
			return err
		case is.Type != e.Type || !is.Durable || is.AutoDelete || is.Internal || !sameArguments(is.Arguments, e.Arguments):
			return hint.Errorf("choose another name by --names", "exchange %q exists already, and is not durable and %s as the recipe needs it", e.Name, e.Type)
		}
	}
	for _, q := range d.Queues {
		is, err := m.Queue(ctx, q.Name)
		switch {
		case errors.Is(err, management.ErrNotFound):
		case err != nil:
			return err
		case !sameArguments(is.Arguments, q.Arguments):
			return hint.Errorf("choose another name by --names", "queue %q exists already, with other arguments than the recipe needs", q.Name)
		}
	}
	return nil
}

func sameArguments(is, want map[string]any) bool {
	return maps.EqualFunc(is, want, func(a, b any) bool { return management.Text(a) == management.Text(b) })
}
