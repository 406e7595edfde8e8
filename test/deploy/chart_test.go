package deploy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
	podsecurity "k8s.io/pod-security-admission/api"
	standards "k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

const chartFolder = root + "/deploy/helm/redrive"

// examples are the values in ci/, by file: what people set, least and most.
func examples(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(chartFolder + "/ci/*-values.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("%q, %v", files, err)
	}
	return files
}

func example(t *testing.T, name string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartFolder, "ci", name+"-values.yaml"))
	must(t, err)
	return parse(t, string(data))
}

func parse(t *testing.T, values string) map[string]any {
	t.Helper()
	v, err := chartutil.ReadValues([]byte(values))
	must(t, err)
	return v
}

// render is what `helm template test redrive --namespace messages` writes, file by
// file, and the values' schema is asked as it does.
func render(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	c, err := loader.Load(chartFolder)
	must(t, err)
	return renderChart(c, values)
}

func renderChart(c *chart.Chart, values map[string]any) (map[string]string, error) {
	release := chartutil.ReleaseOptions{Name: "test", Namespace: "messages", Revision: 1, IsInstall: true}
	v, err := chartutil.ToRenderValues(c, values, release, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, v)
}

// strict knows the kinds that the chart makes, and refuses fields that they do not have.
var strict = func() runtime.Decoder {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, monitoringv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer()
}()

// objects are what Kubernetes would be given.
func objects(t *testing.T, values map[string]any) (all []runtime.Object) {
	t.Helper()
	files, err := render(t, values)
	must(t, err)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "NOTES.txt") || strings.TrimSpace(files[name]) == "" {
			continue
		}
		if strings.Contains(files[name], "<no value>") {
			t.Errorf("%s has a value that is not there:\n%s", name, files[name])
		}
		data, err := yaml.YAMLToJSON([]byte(files[name]))
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, files[name])
		}
		if string(data) == "null" {
			continue // comments alone
		}
		o, _, err := strict.Decode([]byte(files[name]), nil, nil)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, files[name])
		}
		all = append(all, o)
	}
	return all
}

// the is the one object of a kind; nil when there is none.
func the[T runtime.Object](t *testing.T, all []runtime.Object) (found T) {
	t.Helper()
	n := 0
	for _, o := range all {
		if is, ok := o.(T); ok {
			found = is
			n++
		}
	}
	if n > 1 {
		t.Fatalf("%d of %T", n, found)
	}
	return found
}

// pod is the template of the Deployment or StatefulSet, of which there is one.
func pod(t *testing.T, all []runtime.Object) *corev1.PodTemplateSpec {
	t.Helper()
	d, s := the[*appsv1.Deployment](t, all), the[*appsv1.StatefulSet](t, all)
	switch {
	case d != nil && s == nil:
		return &d.Spec.Template
	case s != nil && d == nil:
		return &s.Spec.Template
	}
	t.Fatalf("a Deployment (%v) and a StatefulSet (%v)", d != nil, s != nil)
	return nil
}

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
	must(t, err)
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
		must(t, err)
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
		if write := m.Name == "data"; write == m.ReadOnly {
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
	must(t, yaml.Unmarshal([]byte(config), &values))
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
	must(t, err)
	file := filepath.Join(t.TempDir(), "rules.yml")
	must(t, os.WriteFile(file, b, 0o600))
	promtool(t, "check", "rules", file)

	data, err := os.ReadFile(root + "/deploy/prometheus/redrive.rules.yml")
	must(t, err)
	var want monitoringv1.PrometheusRuleSpec
	must(t, yaml.UnmarshalStrict(data, &want))
	same, err := yaml.Marshal(want)
	if err != nil || string(same) != string(b) || len(want.Groups) < 2 {
		t.Errorf("%v, %d groups; if deploy/prometheus has changed: cp deploy/prometheus/redrive.rules.yml deploy/helm/redrive/files/\n%s", err, len(want.Groups), b)
	}
}

// The dashboard is whole in its ConfigMap.
func TestTheDashboardOfTheChart(t *testing.T) {
	want, err := os.ReadFile(root + "/deploy/grafana/redrive.json")
	must(t, err)
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

// wrong is what the API server would say of an object, with its own code: defaults
// first, then validation.
func wrong(t *testing.T, o runtime.Object) field.ErrorList {
	t.Helper()
	legacyscheme.Scheme.Default(o)
	internal := func(into runtime.Object) {
		must(t, legacyscheme.Scheme.Convert(o, into, nil))
	}
	switch kind := o.GetObjectKind().GroupVersionKind().Kind; kind {
	case "Deployment":
		var d apps.Deployment
		internal(&d)
		d.Namespace = "messages"
		return appsvalidation.ValidateDeployment(&d, corevalidation.PodValidationOptions{})
	case "StatefulSet":
		var s apps.StatefulSet
		internal(&s)
		s.Namespace = "messages"
		return appsvalidation.ValidateStatefulSet(&s, corevalidation.PodValidationOptions{})
	case "Service":
		var s core.Service
		internal(&s)
		s.Namespace = "messages"
		if s.Spec.ClusterIP != "" { // as Kubernetes completes it
			s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		}
		return corevalidation.ValidateServiceCreate(&s)
	case "ConfigMap":
		var m core.ConfigMap
		internal(&m)
		m.Namespace = "messages"
		return corevalidation.ValidateConfigMap(&m)
	case "ServiceAccount":
		var a core.ServiceAccount
		internal(&a)
		a.Namespace = "messages"
		return corevalidation.ValidateServiceAccount(&a)
	case "PodDisruptionBudget":
		var b policy.PodDisruptionBudget
		internal(&b)
		b.Namespace = "messages"
		return policyvalidation.ValidatePodDisruptionBudget(&b, policyvalidation.PodDisruptionBudgetValidationOptions{})
	case "Ingress":
		var n networking.Ingress
		internal(&n)
		n.Namespace = "messages"
		return networkingvalidation.ValidateIngressCreate(&n)
	case "NetworkPolicy":
		var n networking.NetworkPolicy
		internal(&n)
		n.Namespace = "messages"
		return networkingvalidation.ValidateNetworkPolicy(&n, networkingvalidation.NetworkPolicyValidationOptions{})
	case "ServiceMonitor", "PrometheusRule": // of the operator, whose types alone are here
		return nil
	default:
		t.Fatalf("no schema validates a %s", kind)
		return nil
	}
}

func TestKubernetesTakesWhatTheChartMakes(t *testing.T) {
	kinds := map[string]bool{}
	for _, file := range examples(t) {
		name := strings.TrimSuffix(filepath.Base(file), "-values.yaml")
		for _, o := range objects(t, example(t, name)) {
			kind := o.GetObjectKind().GroupVersionKind().Kind
			kinds[kind] = true
			for _, err := range wrong(t, o) {
				t.Errorf("with %s: %s: %v", name, kind, err)
			}
		}
	}
	if len(kinds) != 10 {
		t.Errorf("kinds: %v", kinds)
	}
}

// The pods may run where the strictest of Kubernetes' Pod Security Standards is enforced.
func TestPodsAreRestricted(t *testing.T) {
	evaluator, err := standards.NewEvaluator(standards.DefaultChecks(), nil)
	must(t, err)
	level := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
	for _, file := range examples(t) {
		name := strings.TrimSuffix(filepath.Base(file), "-values.yaml")
		p := pod(t, objects(t, example(t, name)))
		results := evaluator.EvaluatePod(level, &p.ObjectMeta, &p.Spec)
		if len(results) < 10 {
			t.Fatalf("%d checks", len(results))
		}
		for _, r := range results {
			if !r.Allowed {
				t.Errorf("with %s: %s: %s", name, r.ForbiddenReason, r.ForbiddenDetail)
			}
		}
		s := p.Spec.Containers[0].SecurityContext
		if s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
			t.Errorf("with %s the root file system can be written", name)
		}
		if a := p.Spec.AutomountServiceAccountToken; a == nil || *a {
			t.Errorf("with %s the pods have a token of Kubernetes'", name)
		}
	}
}
