package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRedis(t *testing.T) {
	c := parsed(t, `store: {redis: {url: "rediss://u:p@h:1", prefix: x, durability: replicated, replicas: 2, lease: 10s, timeout: 1s, tls: {ca: a, cert: b, key: c}}}`)
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
	must(t, os.WriteFile(file, []byte("s3cret\n"), 0o600))
	env := map[string]string{"REDRIVE_REDIS_PASSWORD_FILE": file}
	if _, err := load(t, "", env); err == nil || !strings.Contains(err.Error(), "store.redis.url") {
		t.Errorf("a password for nothing: %v", err)
	}
	env["REDRIVE_REDIS_URL"] = "redis://u@h:1?master_set=m"
	c, err := load(t, "", env)
	if err != nil || c.Store.Redis.URL != "redis://u:s3cret@h:1?master_set=m" {
		t.Errorf("%+v, %v", c, err)
	}
	env["REDRIVE_REDIS_URL"] = "http://h"
	if _, err := load(t, "", env); err == nil || !strings.Contains(err.Error(), "REDRIVE_REDIS_URL") {
		t.Errorf("a URL of something else: %v", err)
	}
}

// Both stores of a migration are named while the password of one is in the environment.
func TestTheRedisPasswordIsForTheStoreOnRedisAlone(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		must(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	disk := write("disk.yaml", "store: {disk: kept}\npolicies: [{name: all, queues: ['*']}]\n")
	redis := write("redis.yaml", "store: {redis: {url: 'redis://r.example:6379/0'}}\npolicies: [{name: all, queues: ['*']}]\n")
	secret := write("secret", "s3cret\n")
	for _, env := range []map[string]string{{"REDRIVE_REDIS_PASSWORD": "s3cret"}, {"REDRIVE_REDIS_PASSWORD_FILE": secret}} {
		getenv := func(name string) string { return env[name] }
		from, err := StoreAt("config:"+disk, "", getenv)
		if err != nil || from.Redis.URL != "" || from.Disk != "kept" {
			t.Errorf("%v: from %+v, %v", env, from, err)
		}
		to, err := StoreAt("config:"+redis, "", getenv)
		if err != nil || !strings.Contains(to.Redis.URL, ":s3cret@r.example") {
			t.Errorf("%v: to %+v, %v", env, to.Place(), err)
		}
		if _, err := Load(disk, getenv); err == nil {
			t.Errorf("%v: a service with its store on disk takes a password of Redis", env)
		}
	}
}

// The list of processes shows a command line to all users of the machine.
func TestAPasswordOnTheCommandLineIsRefused(t *testing.T) {
	none := func(string) string { return "" }
	if _, err := StoreAt("redis://user:s3cret@r.example:6379/0", "", none); !errors.Is(err, ErrPlace) || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "REDRIVE_REDIS_PASSWORD") {
		t.Errorf("it is taken: %v", err)
	}
	if s, err := StoreAt("redis://user@r.example:6379/0", "", none); err != nil || !strings.Contains(s.Redis.URL, "user@r.example") {
		t.Errorf("a user alone: %+v, %v", s.Place(), err)
	}
}
