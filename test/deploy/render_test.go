package deploy_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
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
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(data))
}

func parse(t *testing.T, values string) map[string]any {
	t.Helper()
	v, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// render is what `helm template test redrive --namespace messages` writes, file by
// file, and the values' schema is asked as it does.
func render(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	c, err := loader.Load(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "NOTES.txt") || strings.TrimSpace(files[name]) == "" {
			continue
		}
		if strings.Contains(files[name], "<no value>") {
			t.Errorf("%s has a value that is not there:\n%s", name, files[name])
		}
		data, err := yaml.ToJSON([]byte(files[name]))
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
