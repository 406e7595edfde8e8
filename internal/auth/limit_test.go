package auth

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func TestFailuresAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter{most: 3, every: time.Minute}
		allowed := func(key string) (n int) {
			for l.charge(key) == 0 {
				n++
			}
			return n
		}
		if n := allowed("a"); n != 3 {
			t.Errorf("%d failures at first", n)
		}
		if n := allowed("b"); n != 3 {
			t.Errorf("%d failures for another", n)
		}
		if wait := l.charge("a"); wait != time.Minute {
			t.Errorf("it says to wait %s", wait)
		}
		time.Sleep(30 * time.Second)
		if wait := l.charge("a"); wait != 30*time.Second {
			t.Errorf("after half of it, %s", wait)
		}
		time.Sleep(30 * time.Second)
		if n := allowed("a"); n != 1 {
			t.Errorf("%d failures after a minute", n)
		}
		time.Sleep(time.Hour)
		if n := allowed("a"); n != 3 {
			t.Errorf("%d failures after an hour", n)
		}
		l.refund("a")
		if n := allowed("a"); n != 1 {
			t.Errorf("%d failures after one that was none", n)
		}
	})
}

func TestTheLimiterIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter{most: 3, every: time.Minute}
		for i := range 3 * mostBuckets {
			l.charge(strconv.Itoa(i))
		}
		if len(l.buckets) > mostBuckets+1 {
			t.Errorf("%d are kept", len(l.buckets))
		}
		if l.charge("new") == 0 {
			t.Error("who comes when all are full is not limited")
		}
		time.Sleep(time.Hour)
		if l.charge("new") != 0 || len(l.buckets) != 1 {
			t.Errorf("after an hour %d are kept", len(l.buckets))
		}
	})
}
