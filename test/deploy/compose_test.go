package deploy_test

import (
	"context"
	"encoding/json"
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
	"sigs.k8s.io/yaml"
)

// prepared is a copy of deploy/ with the secrets made, and what Compose reads there.
func prepared(t *testing.T) (string, *types.Project) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "deploy")
	if err := os.CopyFS(dir, os.DirFS(root+"/deploy")); err != nil {
		t.Fatal(err)
	}
	// Of a person who has made theirs in this tree.
	if err := os.RemoveAll(dir + "/compose/secrets"); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(dir + "/compose/prepare").CombinedOutput(); err != nil {
		t.Fatalf("prepare: %v\n%s", err, out)
	}
	project, err := loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir:  dir,
		ConfigFiles: []types.ConfigFile{{Filename: dir + "/compose.yaml"}},
		Environment: types.Mapping{},
	})
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}

	config := read("compose/redrive.yaml")
	check(t, config)
	var c struct {
		Broker struct{ URL, Management string }
		Store  struct{ Redis struct{ URL string } }
		Listen string
		Audit  struct{ Folder string }
	}
	if err := yaml.Unmarshal([]byte(config), &c); err != nil {
		t.Fatal(err)
	}
	hosts := map[string]string{c.Broker.URL: "rabbitmq:5672", c.Broker.Management: "rabbitmq:15672", c.Store.Redis.URL: "valkey:6379"}
	var grafana struct {
		Datasources []struct{ Type, URL string }
	}
	if err := yaml.Unmarshal([]byte(read("compose/grafana/datasources.yaml")), &grafana); err != nil {
		t.Fatal(err)
	}
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
	if !slices.ContainsFunc(project.Services["redrive"].Volumes, func(v types.ServiceVolumeConfig) bool { return strings.HasPrefix(c.Audit.Folder, v.Target+"/") }) {
		t.Errorf("the audit log is in %s, where nothing can be written", c.Audit.Folder)
	}

	// Paths in the containers become those of the copy, which promtool can follow.
	prometheus := read("compose/prometheus.yml")
	for path, file := range inside {
		prometheus = strings.ReplaceAll(prometheus, path+"]", file+"]")
	}
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(file, []byte(prometheus), 0o600); err != nil {
		t.Fatal(err)
	}
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
	if err := yaml.Unmarshal([]byte(read("compose/grafana/dashboards.yaml")), &dashboards); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	type grant struct{ User, VHost, Configure, Write, Read string }
	var want []grant
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var definitions struct{ Permissions []grant }
	data, err := os.ReadFile(dir + "/compose/secrets/rabbitmq-definitions.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &definitions); err != nil {
		t.Fatal(err)
	}
	if got := definitions.Permissions[:1]; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v; expected %+v", got, want)
	}
}
