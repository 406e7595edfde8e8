package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Both stores of a migration are named while the password of one is in the environment.
func TestTheRedisPasswordIsForTheStoreOnRedisAlone(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
