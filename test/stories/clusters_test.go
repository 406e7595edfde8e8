package stories_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/credentials"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// eachTwoClusters runs a test with two brokers, of two versions where there are two: each is the
// first once.
func eachTwoClusters(t *testing.T, test func(t *testing.T, first, second brokertest.Broker)) {
	all := brokertest.All(t)
	for i, first := range all {
		second := all[(i+1)%len(all)]
		t.Run("RabbitMQ "+first.Version+" and "+second.Version, func(t *testing.T) {
			if len(all) < 2 {
				t.Skip("not run: this needs two brokers")
			}
			t.Parallel()
			test(t, first, second)
		})
	}
}

// elsewhere is what the second cluster's virtual host is called here, since it has the name of the
// first's there.
const elsewhere = "else where/eu"

// twoClusters are virtual hosts of one name on two clusters, and a service's configuration of both.
func twoClusters(t *testing.T, on, other brokertest.Broker, policies string) (first, second *brokertest.VHost, c *config.Config) {
	t.Helper()
	first = brokertest.NewVHost(t, on)
	second = brokertest.NewNamed(t, other, first.Name)
	c = configured(t, first, policies, t.TempDir())
	c.Broker.VHosts = []config.VHost{{Name: elsewhere, VHost: second.Name, URL: second.ServiceURL(c.Policies), Management: second.Management}}
	return first, second, c
}

// Two clusters have a virtual host of one name, with the same queues, ids and bodies: each message
// comes back on its own cluster.
func TestTwoClustersAreIsolated(t *testing.T) {
	t.Run("disk", func(t *testing.T) {
		eachTwoClusters(t, func(t *testing.T, on, other brokertest.Broker) {
			first, second, c := twoClusters(t, on, other, threeAttempts)
			neverMeet(t, first, second, elsewhere, c, 1)
		})
	})
	t.Run("Redis, two replicas", func(t *testing.T) {
		redis := redisnode.New(t, redisnode.Options{})
		eachTwoClusters(t, func(t *testing.T, on, other brokertest.Broker) {
			first, second, c := twoClusters(t, on, other, threeAttempts)
			c.Store.Redis.URL, c.Store.Redis.Prefix = redis.URL(), first.Name+on.Version
			neverMeet(t, first, second, elsewhere, c, 2)
		})
	})
}

// The list of all has a line for each, with what its own cluster says of itself.
func TestAllVirtualHostsInOneList(t *testing.T) {
	eachTwoClusters(t, func(t *testing.T, on, other brokertest.Broker) {
		first, second, c := twoClusters(t, on, other, `policies: [{name: p, queues: [orders], attempts: 1}, {name: later, queues: [later], backoff: {fixed: 1h}}]`)
		s := run(t, c).ready(t)
		for _, queue := range []string{"orders", "later"} {
			deadLettered(second, queue, "quorum")
			second.Publish("", queue, amqp.Publishing{Body: []byte("a")})
			second.Consume(queue).Reject()
		}
		var all httpapi.VHostList
		brokertest.Eventually(t, "one is parked there, and one waits", func() (is bool) {
			var err error
			if all, err = s.Client.VHostList(context.Background()); err != nil || len(all.List) != 2 {
				t.Fatal(all, err)
			}
			return all.List[1].Parked == 1 && all.List[1].Waiting == 1
		})
		a, b := all.List[0], all.List[1]
		if a.Name != first.Name || a.VHost != first.Name || a.RabbitMQ != on.Version || a.Cluster == "" || !a.Ready || a.Parked+a.Waiting != 0 || a.NextDue != nil {
			t.Errorf("the first is %+v", a)
		}
		if b.Name != elsewhere || b.VHost != first.Name || b.RabbitMQ != other.Version || b.Cluster == "" || !b.Ready || b.NextDue == nil || b.PerMinute.Failed != 2 {
			t.Errorf("the second is %+v", b)
		}
		page := get(t, "http://"+s.Addr()+"/all")
		for _, has := range []string{`href="/v/else%20where%2Feu/"`, "virtual host <bdi>" + first.Name, "RabbitMQ <bdi>" + on.Version, "RabbitMQ <bdi>" + other.Version, `<a href="/v/else%20where%2Feu/messages?q=state%3Aparked">1</a>`, `<a href="/all" aria-current="page">All</a>`} {
			if !strings.Contains(page, has) {
				t.Errorf("the page has no %s:\n%s", has, page)
			}
		}
		if !strings.Contains(get(t, "http://"+s.Addr()+httpapi.Base(elsewhere)+"/"), `<a href="/all">All</a>`) {
			t.Error("the page of one does not lead to that of all")
		}
	})
}

// A cluster that is reached by TLS has its own authority; while that is not trusted, this one alone
// is not ready.
func TestAClusterWithItsOwnAuthority(t *testing.T) {
	eachTwoClusters(t, func(t *testing.T, on, other brokertest.Broker) {
		if !other.Private {
			t.Skip("not run: a broker that was given with BROKERS has no certificate of ours")
		}
		own, err := authority.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		other.Authority = own.Dir
		second, n := brokertest.NewPrivate(t, other, "")
		second.AMQP, second.Management = n.URL(), n.Management() // for the test's own clients
		first := brokertest.NewVHost(t, on)
		c := configured(t, first, threeAttempts, t.TempDir())
		second.ServiceURL(c.Policies)
		tenant := config.VHost{Name: elsewhere, VHost: second.Name, URL: n.SecureURL(), Management: n.SecureManagement(),
			TLS: credentials.TLS{CA: on.CA(t).CAFile()}}
		as, err := url.Parse(tenant.URL)
		if err != nil {
			t.Fatal(err)
		}
		as.User = url.UserPassword(second.ServiceUser(), brokertest.ServicePassword)
		tenant.URL = as.String()
		c.Broker.VHosts = []config.VHost{tenant}
		deadLettered(first, "orders", "quorum")
		s := run(t, c)
		brokertest.Eventually(t, "the service says that it does not trust the second", func() bool {
			p := s.Problems()
			return slices.ContainsFunc(p, func(p string) bool {
				return strings.HasPrefix(p, "virtual host "+elsewhere+": intake: connecting to amqps://") && strings.Contains(p, "unknown authority")
			}) && !slices.ContainsFunc(p, func(p string) bool { return strings.HasPrefix(p, "virtual host "+first.Name) })
		})
		retried := func(v *brokertest.VHost, consumer *brokertest.Consumer, body string) {
			v.Publish("", "orders", amqp.Publishing{Body: []byte(body)})
			consumer.Reject()
			consumer.Take(body)
		}
		consumer := first.Consume("orders")
		retried(first, consumer, "a")
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		c.Broker.VHosts[0].TLS.CA = own.CAFile()
		s = run(t, c).ready(t)
		deadLettered(second, "orders", "quorum")
		retried(second, second.Consume("orders"), "b")
		retried(first, consumer, "c")
	})
}

// Users sign in by the cluster that knows them, and see in the list of all what is of theirs.
func TestUsersSignInByTheirOwnCluster(t *testing.T) {
	eachTwoClusters(t, func(t *testing.T, on, other brokertest.Broker) {
		first, second, c := twoClusters(t, on, other, threeAttempts)
		c.Broker.Management, c.Access.SignIn = first.Management, true
		s := run(t, c).ready(t)
		user := func(v *brokertest.VHost, name, password string) {
			v.Must(http.MethodPut, "users/"+name, map[string]any{"password": password, "tags": "monitoring"})
			t.Cleanup(func() { v.Must(http.MethodDelete, "users/"+name, nil) })
			v.Grant(name, "", "", "")
		}
		ann, bob, eve := "ann-"+first.Name, "bob-"+first.Name, "eve-"+first.Name
		user(first, ann, "us")
		user(second, bob, "eu")
		user(first, eve, "both")
		user(second, eve, "both")
		ask := func(name, password, base string) httpapi.Client {
			return httpapi.Client{Addr: s.Addr() + base, User: name, Password: password}
		}
		for _, c := range []struct {
			name, password string
			first, second  bool
		}{{ann, "us", true, false}, {bob, "eu", false, true}, {eve, "both", true, true}, {bob, "us", false, false}} {
			_, err := ask(c.name, c.password, "").Me(context.Background())
			_, errSecond := ask(c.name, c.password, httpapi.Base(elsewhere)).Me(context.Background())
			if (err == nil) != c.first || (errSecond == nil) != c.second {
				t.Errorf("%s signs in to the first with %v, to the second with %v", c.name, err, errSecond)
			}
			var want, got []string
			if c.first {
				want = append(want, first.Name)
			}
			if c.second {
				want = append(want, elsewhere)
			}
			all, err := ask(c.name, c.password, "").VHostList(context.Background())
			for _, v := range all.List {
				got = append(got, v.Name)
			}
			if !slices.Equal(got, want) || (err == nil) != (len(want) > 0) {
				t.Errorf("%s sees %q, want %q: %v", c.name, got, want, err)
			}
			_, err = ask(c.name, c.password, "").Overview(context.Background())
			if (err == nil) != c.first {
				t.Errorf("%s sees the overview of the first with %v", c.name, err)
			}
		}
	})
}

// A management API that hangs lets no one sign in there, and delays what is about all for seconds
// only: the others' lines, metrics and readiness come all the same.
func TestAManagementAPIThatHangsHidesNoOther(t *testing.T) {
	eachTwoClusters(t, func(t *testing.T, on, other brokertest.Broker) {
		first, _, c := twoClusters(t, on, other, threeAttempts)
		hangs, err := net.Listen("tcp", "127.0.0.1:0") // it accepts none, and the kernel connects
		if err != nil {
			t.Fatal(err)
		}
		defer hangs.Close()
		c.Broker.Management, c.Access.SignIn = first.Management, true
		c.Broker.VHosts[0].Management = "http://guest:guest@" + hangs.Addr().String()
		s := run(t, c).ready(t)
		ann := "ann-" + first.Name
		first.Must(http.MethodPut, "users/"+ann, map[string]any{"password": "us", "tags": "monitoring"})
		t.Cleanup(func() { first.Must(http.MethodDelete, "users/"+ann, nil) })
		first.Grant(ann, "", "", "")
		for path, has := range map[string]string{"/api/v1/vhosts": `{"name":"` + elsewhere + `","ready":false,`, "/metrics": `redrive_ready{vhost="` + first.Name + `"} 1`, "/readyz": "ready\n"} {
			ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second) // less than it takes to give up on the management API
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Addr()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.SetBasicAuth(ann, "us")
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), has) || strings.Contains(string(text), `vhost="`+elsewhere) {
				t.Errorf("%s: %d, %v, without %s:\n%.2000s", path, resp.StatusCode, err, has, text)
			}
		}
	})
}
