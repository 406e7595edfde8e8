package deploy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
)

// What `helm lint --strict` says, of all examples.
func TestHelmFindsNothingWrong(t *testing.T) {
	for _, file := range examples(t) {
		name := strings.TrimSuffix(filepath.Base(file), "-values.yaml")
		for _, m := range lint.All(chartFolder, example(t, name), "messages", true).Messages {
			if m.Severity >= support.WarningSev {
				t.Errorf("with %s: %v", name, m)
			}
		}
	}
}

// Each value is set by an example, so that all that is made of it is checked here.
func TestTheFullExampleSetsAllThereIs(t *testing.T) {
	data, err := os.ReadFile(chartFolder + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	full := example(t, "full")
	for name := range parse(t, string(data)) {
		if _, ok := full[name]; !ok && name != "nameOverride" {
			t.Errorf("ci/full-values.yaml does not set %s", name)
		}
	}
}

func TestWhatCannotWorkIsRefused(t *testing.T) {
	const least = "broker: {url: amqp://redrive@rabbitmq/}\nstore: {redis: {url: redis://valkey}}\ntls: {behindProxy: true}\n"
	if _, err := render(t, parse(t, least)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ values, want string }{
		{"", "where is RabbitMQ?"},
		{"broker: {url: amqp://rabbitmq/}", "where is Redis or Valkey?"},
		{least + "store: {kind: memory}", "kind"},
		{least + "image: {repo: x}", "repo"},
		{least + "replica: 3", "replica"},
		{least + "replicas: 0", "replicas"},
		{least + "config: {store: {disk: x}}", "store"},
		{least + "tls: {}", "set one of tls.secret"},
		{least + "tls: {secret: x, behindProxy: true}", "set one of tls.secret"},
		{least + `broker: {url: "amqp://redrive:s3cret@rabbitmq/"}`, "url"},
		{least + `broker: {management: "http://redrive:s3cret@rabbitmq"}`, "management"},
		{least + `store: {redis: {url: "redis://:s3cret@valkey"}}`, "url"},
		{least + `store: {redis: {url: redis://valkey, password: s3cret}}`, "password"},
		{least + `store: {redis: {url: redis://valkey, durability: eventually}}`, "durability"},
		{least + "serviceMonitor: {enabled: true}", "Prometheus may not see the metrics"},
		{least + "ingress: {enabled: true}", "which name is the page's?"},
		{least + "store: {kind: disk, disk: {retention: {whenDeleted: Keep}}}", "whenDeleted"},
	} {
		values := map[string]any{}
		for line := range strings.Lines(c.values) { // a later line stands for an earlier one of its key
			for k, v := range parse(t, line) {
				values[k] = v
			}
		}
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\ngives %v; expected %q", c.values, err, c.want)
		}
	}
}

// config is the file that the pods' service is started with.
func config(t *testing.T, all []runtime.Object) string {
	t.Helper()
	for _, o := range all {
		if m, ok := o.(*corev1.ConfigMap); ok && m.Data["redrive.yaml"] != "" {
			return m.Data["redrive.yaml"]
		}
	}
	t.Fatal("there is no config file")
	return ""
}

// The service understands the file that the chart makes for it, and nothing secret is
// in there.
func TestTheServiceUnderstandsItsConfig(t *testing.T) {
	for name, policy := range map[string]string{"redis": "all", "disk": "all", "claim": "all", "full": "orders"} {
		t.Run(name, func(t *testing.T) {
			said := check(t, config(t, objects(t, example(t, name))), "TEAM_URL=slack+https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX")
			if !strings.Contains(said, policy) {
				t.Errorf("redrive check says\n%s", said)
			}
		})
	}
}

// What the service takes up while it runs (policies, notify, decode) restarts no pod;
// all else does, since it takes effect at a start alone.
func TestOnlyWhatNeedsARestartRestarts(t *testing.T) {
	template := func(change string) string {
		values := example(t, "redis")
		for k, v := range parse(t, change) {
			values[k] = v
		}
		b, err := json.Marshal(pod(t, objects(t, values)))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	was := template("")
	for change, restarts := range map[string]bool{
		"config: {policies: [{name: other, queues: [other]}]}":          false,
		"config: {notify: {no_consumer: 1h}}":                           false,
		"config: {decode: {protobuf: {header: x}}}":                     false,
		"config: {auth: {metrics: open}}":                               true,
		"config: {read_only: true}":                                     true,
		"broker: {url: amqp://redrive@other/}":                          true,
		"store: {redis: {url: redis://redrive@other}, restorable: 90d}": true,
		"replicas: 7": false,
	} {
		if (template(change) != was) != restarts {
			t.Errorf("%s: restarts the pods: %v", change, !restarts)
		}
	}
}

// What names something else of the chart names something that is there.
func TestObjectsFitTogether(t *testing.T) {
	for _, file := range examples(t) {
		name := strings.TrimSuffix(filepath.Base(file), "-values.yaml")
		t.Run(name, func(t *testing.T) {
			all := objects(t, example(t, name))
			p := pod(t, all)
			c := p.Spec.Containers[0]
			selects := func(what string, labels map[string]string) {
				for k, v := range labels {
					if p.Labels[k] != v {
						t.Errorf("%s selects %s=%s, and pods have %q", what, k, v, p.Labels[k])
					}
				}
				if len(labels) == 0 {
					t.Errorf("%s selects everything", what)
				}
			}
			s, pods := services(t, all)
			selects("the Service", s.Spec.Selector)
			if d := the[*appsv1.Deployment](t, all); d != nil {
				selects("the Deployment", d.Spec.Selector.MatchLabels)
			}
			if set := the[*appsv1.StatefulSet](t, all); set != nil {
				selects("the StatefulSet", set.Spec.Selector.MatchLabels)
				selects("the Service of the pods", pods.Spec.Selector)
				if set.Spec.ServiceName != pods.Name || *set.Spec.Replicas != 1 {
					t.Errorf("%d replicas of service %s", *set.Spec.Replicas, set.Spec.ServiceName)
				}
				volumes(t, name, set)
			}
			if b := the[*policyv1.PodDisruptionBudget](t, all); b != nil {
				selects("the PodDisruptionBudget", b.Spec.Selector.MatchLabels)
			}
			if is := the[*policyv1.PodDisruptionBudget](t, all) != nil; is != (name != "disk" && name != "claim") {
				t.Errorf("there is a PodDisruptionBudget: %v", is)
			}
			port, file := c.Ports[0].Name, config(t, all)
			if n := the[*networkingv1.NetworkPolicy](t, all); n != nil {
				selects("the NetworkPolicy", n.Spec.PodSelector.MatchLabels)
				if got := n.Spec.Ingress[0].Ports[0].Port.StrVal; got != port {
					t.Errorf("the NetworkPolicy lets in to port %q", got)
				}
			}
			if m := the[*monitoringv1.ServiceMonitor](t, all); m != nil {
				only := false
				for k, v := range m.Spec.Selector.MatchLabels {
					if s.Labels[k] != v {
						t.Errorf("the ServiceMonitor selects %s=%s, and the Service has %q", k, v, s.Labels[k])
					}
					only = only || pods != nil && pods.Labels[k] != v
				}
				if pods != nil && !only {
					t.Error("the ServiceMonitor finds each pod twice")
				}
				if got := m.Spec.Endpoints[0].Port; got != s.Spec.Ports[0].Name {
					t.Errorf("the ServiceMonitor asks port %q", got)
				}
			}
			if i := the[*networkingv1.Ingress](t, all); i != nil {
				path := i.Spec.Rules[0].HTTP.Paths[0]
				if to := path.Backend.Service; to.Name != s.Name || to.Port.Name != s.Spec.Ports[0].Name || !strings.Contains(file, "base_path: "+path.Path+"\n") {
					t.Errorf("the Ingress goes from %s to %+v, with\n%s", path.Path, to, file)
				}
			}
			if got := s.Spec.Ports[0].TargetPort.StrVal; got != port {
				t.Errorf("the Service goes to port %q", got)
			}
			if got := p.Spec.ServiceAccountName; got != the[*corev1.ServiceAccount](t, all).Name {
				t.Errorf("the pods run as %q", got)
			}
			scheme := corev1.URISchemeHTTP
			if strings.Contains(file, "cert: /") {
				scheme = corev1.URISchemeHTTPS
			}
			for path, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/healthz ": c.StartupProbe, "/readyz": c.ReadinessProbe} {
				if get := probe.HTTPGet; get.Path != strings.TrimSpace(path) || get.Port.StrVal != port || get.Scheme != scheme {
					t.Errorf("a probe of %s asks %+v", path, get)
				}
			}
			if !strings.Contains(file, fmt.Sprintf("listen: 0.0.0.0:%d\n", c.Ports[0].ContainerPort)) {
				t.Errorf("the port is %d in\n%s", c.Ports[0].ContainerPort, file)
			}
			files(t, p, file)
		})
	}
}

// files holds each path that the config and the variables name to the pod's mounts.
func files(t *testing.T, p *corev1.PodTemplateSpec, config string) {
	t.Helper()
	c := p.Spec.Containers[0]
	there := map[string]bool{} // file or folder: whether it may be written
	for _, m := range c.VolumeMounts {
		at := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if at < 0 { // of a volumeClaimTemplate
			there[m.MountPath+"/data"] = true
			continue
		}
		switch v := p.Spec.Volumes[at]; {
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				there[m.MountPath+"/"+s.Secret.Items[0].Path] = false
			}
		case v.Secret != nil:
			for _, key := range []string{"ca.crt", "tls.crt", "tls.key"} {
				there[m.MountPath+"/"+key] = false
			}
		case v.ConfigMap != nil && m.Name == "config":
			there[m.MountPath+"/redrive.yaml"] = false
		default:
			there[m.MountPath] = !m.ReadOnly
			if m.Name == "data" {
				there[m.MountPath+"/data"] = true
			}
		}
		if write := m.Name == "audit" || m.Name == "data"; write == m.ReadOnly {
			t.Errorf("%s is read-only: %v", m.MountPath, m.ReadOnly)
		}
	}
	if !slices.Contains(c.Args, "/etc/redrive/redrive.yaml") {
		t.Errorf("started with %q", c.Args)
	}
	named := slices.Clone(c.Args)
	for _, e := range c.Env {
		if strings.HasSuffix(e.Name, "_FILE") {
			named = append(named, e.Value)
		}
	}
	var values any
	if err := yaml.Unmarshal([]byte(config), &values); err != nil {
		t.Fatal(err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, v := range v {
				walk(v)
			}
		case []any:
			for _, v := range v {
				walk(v)
			}
		case string:
			named = append(named, v)
		}
	}
	if top, ok := values.(map[string]any); ok {
		delete(top, "base_path") // of URLs
	}
	walk(values)
	n := 0
	for _, path := range named {
		if !strings.HasPrefix(path, "/") {
			continue
		}
		n++
		if _, ok := there[path]; !ok {
			t.Errorf("%s is named, and not mounted: %v", path, there)
		}
	}
	if n < 2 {
		t.Errorf("only %d paths in %q", n, named)
	}
}

// Secrets come as files: no variable of the chart's has one, and files are readable for
// the service alone.
func TestSecretsComeAsFiles(t *testing.T) {
	p := pod(t, objects(t, example(t, "full")))
	variables := map[string]bool{}
	for _, e := range p.Spec.Containers[0].Env {
		variables[e.Name] = true
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && e.Name != "TEAM_URL" {
			t.Errorf("the variable %s is a secret", e.Name)
		}
	}
	for _, name := range []string{"BROKER_URL", "BROKER_PASSWORD", "MANAGEMENT_URL", "REDIS_URL", "REDIS_PASSWORD"} {
		if !variables["REDRIVE_"+name+"_FILE"] {
			t.Errorf("no variable REDRIVE_%s_FILE", name)
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.Secret != nil && *v.Secret.DefaultMode != 0o440 || v.Projected != nil && *v.Projected.DefaultMode != 0o440 {
			t.Errorf("volume %s can be read by others", v.Name)
		}
	}
}

// Prometheus takes the rules as the chart gives them, and they are those of
// deploy/prometheus.
func TestTheRulesOfTheChart(t *testing.T) {
	r := the[*monitoringv1.PrometheusRule](t, objects(t, example(t, "full")))
	b, err := yaml.Marshal(r.Spec)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)

	data, err := os.ReadFile(root + "/deploy/prometheus/redrive.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var want monitoringv1.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(data, &want); err != nil {
		t.Fatal(err)
	}
	same, err := yaml.Marshal(want)
	if err != nil || string(same) != string(b) || len(want.Groups) < 2 {
		t.Errorf("%v, %d groups; if deploy/prometheus has changed: cp deploy/prometheus/redrive.rules.yml deploy/helm/redrive/files/\n%s", err, len(want.Groups), b)
	}
}

// The dashboard is whole in its ConfigMap.
func TestTheDashboardOfTheChart(t *testing.T) {
	want, err := os.ReadFile(root + "/deploy/grafana/redrive.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects(t, example(t, "full")) {
		if m, ok := o.(*corev1.ConfigMap); ok && m.Data["redrive.json"] != "" {
			if strings.TrimSpace(m.Data["redrive.json"]) != strings.TrimSpace(string(want)) {
				t.Error("it is another than deploy/grafana has: cp deploy/grafana/redrive.json deploy/helm/redrive/files/")
			}
			return
		}
	}
	t.Error("there is no dashboard")
}
