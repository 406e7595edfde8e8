package doctor_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/redrive-mq/redrive/internal/rabbitmq/doctor"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// sitesAtOnce is how many virtual hosts are tried at the same time: most of the time passes waiting
// for what RabbitMQ reports late.
const sitesAtOnce = 5

// Each of the set-ups is named, and what the doctor prints repairs it. Then each command that it can
// print has been run.
func TestSetups(t *testing.T) {
	ran := &commandsRun{seen: map[string][]string{}}
	t.Run("on", func(t *testing.T) {
		brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, node *rabbitnode.Node) {
			ctx := context.Background()
			if _, err := node.Shell(ctx, "rabbitmq-plugins enable rabbitmq_federation"); err != nil {
				t.Fatal(err)
			}
			if _, err := node.Eval(ctx, "application:set_env(rabbit, quorum_tick_interval, 500)."); err != nil {
				t.Fatal(err)
			}
			n := tryAll(t, v, node, ran)
			t.Logf("RabbitMQ %s: %d set-ups were named and repaired", v.Version, n)
			if n < 60 {
				t.Errorf("%d set-ups, want 60", n)
			}
		})
	})
	if !t.Failed() && ran.trials == ran.tried { // not with -run for some of them
		ran.haveAll(t)
	}
}

type trial struct {
	name, yaml string
	all        []setup
}

func trials(t *testing.T, v *brokertest.VHost) (all []trial) {
	add := func(name, yaml string, some []setup) {
		var kept []setup
		for _, u := range some {
			if u.in(v.Version) {
				kept = append(kept, u)
			}
		}
		if len(kept) > 0 {
			all = append(all, trial{name, yaml, kept})
		}
	}
	add("queues", queuesConfig, queueSetups)
	add("dead-letter queues", "", deadLetterSetups)
	add("many", "", manySetups)
	add("clients", "", clientSetups)
	add("standing", "", standingSetups)
	add("scenes", "", sceneSetups)
	for i, some := range topologySites {
		add(fmt.Sprintf("topology %d %s", i, some[0].check), "", some)
	}
	for i, r := range rightsSites {
		add(fmt.Sprintf("rights %d %s", i, r.all[0].check), r.yaml, r.all)
	}
	for i, some := range serviceSites {
		add(fmt.Sprintf("service %d %s", i, some[0].check), "", some)
	}
	add("redis", "", redisSetups(redisnode.New(t, redisnode.Options{})))
	return all
}

// tryAll tries all set-ups that are for a version.
func tryAll(t *testing.T, v *brokertest.VHost, node *rabbitnode.Node, ran *commandsRun) (n int) {
	todo := make(chan trial)
	var working sync.WaitGroup
	for range sitesAtOnce {
		working.Go(func() {
			for one := range todo {
				t.Run(one.name, func(t *testing.T) {
					ran.count(&ran.tried)
					newSite(t, v, node, one.yaml, ran).tries(one.all)
				})
			}
		})
	}
	for _, one := range trials(t, v) {
		ran.count(&ran.trials)
		todo <- one
		n += len(one.all)
	}
	close(todo)
	working.Wait()
	for _, one := range nodeSetups(node) { // of the whole node, so one after the other
		t.Run(one.check, func(t *testing.T) { newSite(t, v, node, "", ran).tries([]setup{one}) })
		n++
	}
	return n
}

// nodeSetups are about a node.
func nodeSetups(node *rabbitnode.Node) []setup {
	eval := func(s *site, expression string) {
		s.t.Helper()
		_, err := node.Eval(context.Background(), expression)
		s.must(err)
	}
	return []setup{
		{check: "alarms", status: doctor.Wrong, says: "has a memory alarm", makes: func(s *site) {
			eval(s, "vm_memory_monitor:set_check_interval(100), vm_memory_monitor:set_vm_memory_high_watermark(0.00001).")
		}, person: func(s *site) { eval(s, "vm_memory_monitor:set_vm_memory_high_watermark(0.9).") }},
		{check: "guest", status: doctor.Wrong, says: "RabbitMQ lets guest in from other machines", makes: func(s *site) {
			s.Must(http.MethodPut, "users/admin", map[string]any{"password": "guest", "tags": "administrator"})
			s.Grant("admin", ".*", ".*", ".*")
			s.asAdmin()
		}, after: true, scene: func(s *doctor.Scene) {
			_, err := s.Manage.As("guest", "guest").Overview(context.Background())
			s.Guest = err == nil // as it would be from another machine
		}},
	}
}

// asAdmin makes a site do without guest.
func (s *site) asAdmin() {
	s.Management = strings.Replace(s.Management, "guest:guest", "admin:guest", 1)
	s.url = s.URLAs("admin", "guest")
}
