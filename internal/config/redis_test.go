package config

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestRedis(t *testing.T) {
	c, err := Parse("f", []byte(`store: {redis: {url: "rediss://u:p@h:1", prefix: x, durability: replicated, replicas: 2, lease: 10s, timeout: 1s, tls: {ca: a, cert: b, key: c}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Redis{URL: "rediss://u:p@h:1", Prefix: "x", Durability: "replicated", Replicas: 2, Lease: 10 * time.Second, Timeout: time.Second, CA: "a", Cert: "b", Key: "c"}
	if c.Store.Redis != want {
		t.Errorf("read as %+v", c.Store.Redis)
	}
	if place := c.Store.Place(); place != "rediss://u:xxxxx@h:1, prefix x" {
		t.Errorf("logged as %s", place)
	}
	if place := Default().Store.Place(); place != "./redrive-data" {
		t.Errorf("the default is logged as %s", place)
	}
	for yaml, want := range map[string]string{
		`url: "amqp://h"`:                   "redis://",
		`url: "redis://:s3cret@"`:           "is not a URL",
		`prefix: "a{b"`:                     "without braces",
		`shards: 4`:                         "shards",
		`durability: always`:                "synced",
		`replicas: 2`:                       "durability: replicated",
		`lease: 1s`:                         "from 5s to 10m0s",
		`timeout: 10m`:                      "from 100ms to 1m0s",
		`tls: {cert: a}`:                    "both cert and key",
		`host: h`:                           `no key "host"`,
		`tls: {ca: a, cert: b, key: c, x:}`: `no key "x"`,
	} {
		if _, err := Parse("f", []byte("store: {redis: {"+yaml+"}}")); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v; want %q", yaml, err, want)
		}
	}
}

func TestRedisFromTheEnvironment(t *testing.T) {
	file := t.TempDir() + "/password"
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"REDRIVE_REDIS_PASSWORD_FILE": file}
	load := func() (*Config, error) { return Load("", func(k string) string { return env[k] }) }
	if _, err := load(); err == nil || !strings.Contains(err.Error(), "store.redis.url") {
		t.Errorf("a password for nothing: %v", err)
	}
	env["REDRIVE_REDIS_URL"] = "redis://u@h:1?master_set=m"
	c, err := load()
	if err != nil || c.Store.Redis.URL != "redis://u:s3cret@h:1?master_set=m" {
		t.Errorf("%+v, %v", c, err)
	}
	env["REDRIVE_REDIS_URL"] = "http://h"
	if _, err := load(); err == nil || !strings.Contains(err.Error(), "REDRIVE_REDIS_URL") {
		t.Errorf("a URL of something else: %v", err)
	}
}
