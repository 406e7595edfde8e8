package facts_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/model"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

// onEnv says what facts are tried on: RabbitMQ and the model without it, with "model" the
// model alone, with "unshown" the model alone, with the facts that it does not show.
const onEnv = "REDRIVE_FACTS_ON"

// onEach runs a test on the model and on every broker, beside the other tests.
func onEach(t *testing.T, test func(*testing.T, *vhost)) {
	t.Parallel()
	onModels(t, test)
	if os.Getenv(onEnv) == "" {
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
			test(t, &vhost{broker: rabbit{VHost: v}, Version: v.Version, t: t})
		})
	}
}

// onEachPrivate is onEach on nodes of the test's own.
func onEachPrivate(t *testing.T, test func(*testing.T, *vhost)) {
	t.Parallel()
	onModels(t, test)
	if os.Getenv(onEnv) == "" {
		brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
			test(t, &vhost{broker: rabbit{v, n}, Version: v.Version, t: t})
		})
	}
}

// onModels runs a test on the model of each version, in fake time.
func onModels(t *testing.T, test func(*testing.T, *vhost)) {
	t.Helper()
	for _, version := range model.Versions {
		t.Run("model of "+version, func(t *testing.T) {
			if os.Getenv(onEnv) != "unshown" && slices.Contains(unshownNames(), t.Name()) {
				return // TestTheModelStillCannotShowWhatIsListed runs it
			}
			synctest.Test(t, func(t *testing.T) {
				m := model.New(model.Options{Version: version})
				defer m.Close()
				test(t, &vhost{broker: modelled{m}, Version: version, t: t})
			})
		})
	}
}

func unshownNames() (names []string) {
	for _, u := range unshown {
		versions := u.versions
		if versions == nil {
			versions = model.Versions
		}
		for _, fact := range u.facts {
			for _, version := range versions {
				names = append(names, fact+"/model_of_"+version)
			}
		}
	}
	return names
}

// A fact that the model shows must leave the list: from then on it holds.
func TestTheModelStillCannotShowWhatIsListed(t *testing.T) {
	if os.Getenv(onEnv) != "" {
		return // this test is what started this program
	}
	for _, name := range unshownNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := exec.Command(os.Args[0], "-test.v", "-test.count=1", "-test.timeout=5m", "-test.run=^"+strings.ReplaceAll(name, "/", "$/^")+"$")
			c.Env = append(os.Environ(), onEnv+"=unshown")
			out, err := c.CombinedOutput()
			switch said := string(out); {
			case err == nil && strings.Contains(said, "--- PASS: "+name+" "):
				t.Error("the model shows it: take it from the list")
			case !strings.Contains(said, "=== RUN   "+name+"\n"):
				t.Errorf("no such fact: %v\n%s", err, out)
			}
		})
	}
}
