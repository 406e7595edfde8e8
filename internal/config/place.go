package config

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// ErrPlace: a text names no store.
var ErrPlace = errors.New("names no store")

const redisPassword = "REDRIVE_REDIS_PASSWORD"

// onRedis tells whether a config file names a store in Redis; no for a file that cannot be read.
func onRedis(file string) bool {
	data, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	c, err := Parse(file, data)
	return err == nil && !c.Store.OnDisk()
}

// StoreAt returns the store that an argument names: disk:FOLDER; a URL of Redis or Valkey without a
// password, which REDRIVE_REDIS_PASSWORD (or …_FILE) has; or config:FILE, the store of a virtual
// host of that file, "" for the first.
func StoreAt(place, vhost string, getenv func(string) string) (Store, error) {
	kind, rest, _ := strings.Cut(place, ":")
	c := Default()
	switch {
	case rest == "":
		return c.Store, fmt.Errorf("%q %w: expected disk:FOLDER, redis://host:port/db or config:FILE", place, ErrPlace)
	case kind == "disk":
		c.Store.Disk = rest
		return c.Store, nil
	case kind == "config":
		c, err := Load(rest, func(name string) string {
			// Of two files' stores perhaps only the other one is on Redis.
			if strings.HasPrefix(name, redisPassword) && getenv("REDRIVE_REDIS_URL") == "" && getenv("REDRIVE_REDIS_URL_FILE") == "" && !onRedis(rest) {
				return ""
			}
			return getenv(name)
		})
		if err == nil {
			c, err = c.ForVHost(vhost)
		}
		if err != nil {
			return Store{}, err
		}
		return c.Store, nil
	}
	if u, err := url.Parse(place); err == nil && u.User != nil {
		if _, set := u.User.Password(); set {
			return c.Store, fmt.Errorf("a command line is no place for a password, which others see there (%w): REDRIVE_REDIS_PASSWORD has it, or a file that REDRIVE_REDIS_PASSWORD_FILE names", ErrPlace)
		}
	}
	if err := c.Store.Redis.setURL(place); err != nil {
		return c.Store, fmt.Errorf("%q %w (%w): expected disk:FOLDER, redis://host:port/db or config:FILE", place, ErrPlace, err)
	}
	value, _, err := variable(redisPassword, getenv)
	if err == nil && value != "" {
		err = c.Store.Redis.setPassword(value)
	}
	return c.Store, err
}
