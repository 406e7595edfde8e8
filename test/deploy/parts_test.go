package deploy_test

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// services are that of the page, and that of the StatefulSet's pods or nil.
func services(t *testing.T, all []runtime.Object) (page, pods *corev1.Service) {
	t.Helper()
	for _, o := range all {
		switch s, ok := o.(*corev1.Service); {
		case !ok:
		case s.Spec.ClusterIP == "None" && pods == nil:
			pods = s
		case page == nil:
			page = s
		default:
			t.Fatalf("there is a further Service %s", s.Name)
		}
	}
	return page, pods
}

// volumes: messages are in a claim of the StatefulSet's, which outlives it, or in one that exists.
func volumes(t *testing.T, name string, set *appsv1.StatefulSet) {
	t.Helper()
	of := set.Spec.Template.Spec.Volumes
	at := slices.IndexFunc(of, func(v corev1.Volume) bool { return v.Name == "data" })
	if name == "claim" {
		if at < 0 || of[at].PersistentVolumeClaim.ClaimName != "redrive-data" || len(set.Spec.VolumeClaimTemplates) != 0 {
			t.Errorf("the volumes %+v, and claims %+v", of, set.Spec.VolumeClaimTemplates)
		}
		return
	}
	keep := set.Spec.PersistentVolumeClaimRetentionPolicy
	if at >= 0 || len(set.Spec.VolumeClaimTemplates) != 1 || keep == nil || keep.WhenDeleted != appsv1.RetainPersistentVolumeClaimRetentionPolicyType || keep.WhenScaled != appsv1.RetainPersistentVolumeClaimRetentionPolicyType {
		t.Errorf("the claims %+v are kept by %+v", set.Spec.VolumeClaimTemplates, keep)
	}
}
