// Package deploy_test holds the Helm chart and the Compose file of deploy/ to what
// would read them: Helm's engine, Kubernetes' own types and validation, the Prometheus
// operator's types, the Compose specification, promtool, and `redrive check`. It is a
// module of its own, since these are heavy and no one else needs them.
package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// redrive is the program of this tree.
var redrive string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	log.SetOutput(io.Discard) // Helm tells of the chart's links at each load
	dir, err := os.MkdirTemp("", "redrive-deploy-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	redrive = filepath.Join(dir, "redrive")
	build := exec.Command("go", "build", "-trimpath", "-o", redrive, "./cmd/redrive")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building redrive: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// check is what `redrive check` says of a config file that nothing is wrong with.
func check(t *testing.T, config string, env ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "redrive.yaml")
	must(t, os.WriteFile(file, []byte(config), 0o600))
	c := exec.Command(redrive, "check", "--no-files", file)
	c.Env = env
	var warnings strings.Builder
	c.Stderr = &warnings
	out, err := c.Output()
	if err != nil || warnings.Len() > 0 {
		t.Fatalf("redrive check: %v\n%s%s\nof\n%s", err, out, &warnings, config)
	}
	return string(out)
}

// promtool runs Prometheus's own checks.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	name := "promtool"
	if dir := os.Getenv("REDRIVE_PROMETHEUS"); dir != "" {
		name = filepath.Join(dir, name)
	}
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("this needs Prometheus: run `make test`, or `make install-prometheus` once (%v)", err)
	}
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

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

// prepared is a copy of deploy/ with the secrets made, and what Compose reads there.
func prepared(t *testing.T) (string, *types.Project) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "deploy")
	must(t, os.CopyFS(dir, os.DirFS(root+"/deploy")))
	// Of a person who has made theirs in this tree.
	must(t, os.RemoveAll(dir+"/compose/secrets"))
	if out, err := exec.Command(dir + "/compose/prepare").CombinedOutput(); err != nil {
		t.Fatalf("prepare: %v\n%s", err, out)
	}
	project, err := loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir:  dir,
		ConfigFiles: []types.ConfigFile{{Filename: dir + "/compose.yaml"}},
		Environment: types.Mapping{},
	})
	must(t, err)
	return dir, project
}

// Compose's own loader takes the file: its schema, and what it refers to. Each file that
// it names is there.
func TestComposeTakesTheFile(t *testing.T) {
	dir, project := prepared(t)
	if got := project.ServiceNames(); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"grafana", "prometheus", "rabbitmq", "redrive", "valkey"}) {
		t.Errorf("services %q", got)
	}
	if r := project.Services["redrive"]; r.Deploy == nil || r.Deploy.Replicas == nil || *r.Deploy.Replicas != 3 {
		t.Errorf("replicas: %+v", r.Deploy)
	}
	for _, s := range project.Secrets {
		isFile(t, s.File)
	}
	files := 0
	for name, s := range project.Services {
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind {
				files++
				isFile(t, v.Source)
				if !v.ReadOnly {
					t.Errorf("%s may write %s", name, v.Source)
				}
			}
		}
		if b := s.Build; b != nil {
			isFile(t, filepath.Join(b.Context, b.Dockerfile))
			if b.Context != filepath.Dir(dir) {
				t.Errorf("built in %s", b.Context)
			}
		}
		for _, secret := range s.Secrets {
			if _, ok := project.Secrets[secret.Source]; !ok {
				t.Errorf("%s: no secret %s", name, secret.Source)
			}
		}
	}
	if files < 7 {
		t.Errorf("%d files are mounted", files)
	}
}

func isFile(t *testing.T, path string) {
	t.Helper()
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		t.Errorf("%s is no file with something in it: %v", path, err)
	}
}

// Nothing can be reached from another machine, and no secret is in the file.
func TestComposeKeepsToThisMachine(t *testing.T) {
	dir, project := prepared(t)
	for name, s := range project.Services {
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is published at %q", name, p.Published, p.HostIP)
			}
		}
		if s.NetworkMode != "" || s.Privileged {
			t.Errorf("%s has the machine's network, or its rights", name)
		}
		if !slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s may gain rights", name)
		}
		for variable, value := range s.Environment {
			if secret := strings.Contains(variable, "PASSWORD") || strings.Contains(variable, "TOKEN"); secret && (!strings.HasSuffix(variable, "_FILE") || !strings.HasPrefix(*value, "/run/secrets/")) {
				t.Errorf("%s: %s=%s", name, variable, *value)
			}
			if path := *value; strings.HasSuffix(variable, "_FILE") && !slices.ContainsFunc(s.Secrets, func(c types.ServiceSecretConfig) bool {
				return c.Target == path || "/run/secrets/"+c.Source == path
			}) {
				t.Errorf("%s: %s names %s, which is no secret of its", name, variable, path)
			}
		}
	}
	for _, name := range []string{"redrive", "valkey", "prometheus", "grafana"} {
		if s := project.Services[name]; !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) {
			t.Errorf("%s may write its root file system, or has capabilities", name)
		}
	}
	text, err := os.ReadFile(dir + "/compose.yaml")
	must(t, err)
	for _, name := range []string{"broker-password", "redis-password", "grafana-password", "admin-password"} {
		secret, err := os.ReadFile(dir + "/compose/secrets/" + name)
		if err != nil || len(secret) != 49 || strings.Contains(string(text), string(secret)) {
			t.Errorf("%s: %d bytes, %v", name, len(secret), err)
		}
	}
	if info, err := os.Stat(dir + "/compose/secrets"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("others may read the secrets: %v, %v", info.Mode(), err)
	}
}

// The files that Compose mounts are what those who read them understand, and name each
// other as Compose does.
func TestTheFilesOfCompose(t *testing.T) {
	dir, project := prepared(t)
	inside := map[string]string{} // path in the container: on this machine
	for _, s := range project.Services {
		for _, v := range s.Volumes {
			inside[v.Target] = v.Source
		}
		for _, secret := range s.Secrets {
			inside[secret.Target] = project.Secrets[secret.Source].File
		}
	}
	read := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(dir + "/" + name)
		must(t, err)
		return string(data)
	}

	config := read("compose/redrive.yaml")
	check(t, config)
	var c struct {
		Broker struct{ URL, Management string }
		Store  struct{ Redis struct{ URL string } }
		Listen string
	}
	must(t, yaml.Unmarshal([]byte(config), &c))
	hosts := map[string]string{c.Broker.URL: "rabbitmq:5672", c.Broker.Management: "rabbitmq:15672", c.Store.Redis.URL: "valkey:6379"}
	var grafana struct {
		Datasources []struct{ Type, URL string }
	}
	must(t, yaml.Unmarshal([]byte(read("compose/grafana/datasources.yaml")), &grafana))
	hosts[grafana.Datasources[0].URL] = "prometheus:9090"
	for raw, want := range hosts {
		u, err := url.Parse(raw)
		if err != nil || u.Host != want {
			t.Errorf("%s leads to %s; expected %s", raw, u.Host, want)
			continue
		}
		if _, ok := project.Services[u.Hostname()]; !ok {
			t.Errorf("%s leads to no service", raw)
		}
	}
	if !strings.HasSuffix(c.Listen, ":8250") || project.Services["redrive"].Ports[0].Target != 8250 {
		t.Errorf("the service listens at %s, and Compose goes to %d", c.Listen, project.Services["redrive"].Ports[0].Target)
	}

	// Paths in the containers become those of the copy, which promtool can follow.
	prometheus := read("compose/prometheus.yml")
	for path, file := range inside {
		prometheus = strings.ReplaceAll(prometheus, path+"]", file+"]")
	}
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	must(t, os.WriteFile(file, []byte(prometheus), 0o600))
	promtool(t, "check", "config", file)
	if !strings.Contains(prometheus, dir) {
		t.Errorf("Prometheus has no rules that are mounted:\n%s", prometheus)
	}

	var dashboards struct {
		Providers []struct {
			Type    string
			Options struct{ Path string }
		}
	}
	must(t, yaml.Unmarshal([]byte(read("compose/grafana/dashboards.yaml")), &dashboards))
	if p := dashboards.Providers[0]; p.Type != "file" || inside[p.Options.Path+"/redrive.json"] == "" {
		t.Errorf("Grafana looks for dashboards in %q", p.Options.Path)
	}
	if _, path, _ := strings.Cut(read("compose/rabbitmq.conf"), "load_definitions = "); inside[strings.TrimSpace(path)] == "" {
		t.Errorf("RabbitMQ loads %q, which is not mounted", path)
	}
	if _, path, _ := strings.Cut(read("compose/valkey.conf"), "aclfile "); inside[strings.Fields(path)[0]] == "" {
		t.Errorf("Valkey loads %q, which is not mounted", path)
	}
}

// The service's user has the rights that `redrive permissions` prints, and no more.
func TestTheRightsInTheDefinitions(t *testing.T) {
	dir, _ := prepared(t)
	out, err := exec.Command(redrive, "permissions", "--config", dir+"/compose/redrive.yaml", "--for", "service", "--user", "redrive", "-o", "json").Output()
	must(t, err)
	type grant struct{ User, VHost, Configure, Write, Read string }
	var want []grant
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var definitions struct{ Permissions []grant }
	data, err := os.ReadFile(dir + "/compose/secrets/rabbitmq-definitions.json")
	must(t, err)
	must(t, json.Unmarshal(data, &definitions))
	if got := definitions.Permissions[:1]; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v; expected %+v", got, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
