package deploy_test

import (
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
	podsecurity "k8s.io/pod-security-admission/api"
	standards "k8s.io/pod-security-admission/policy"

	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
)

// wrong is what the API server would say of an object, with its own code: defaults
// first, then validation.
func wrong(t *testing.T, o runtime.Object) field.ErrorList {
	t.Helper()
	legacyscheme.Scheme.Default(o)
	internal := func(into runtime.Object) {
		if err := legacyscheme.Scheme.Convert(o, into, nil); err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
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
