package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// What is put off while it is scanned comes again further on, and is visited once.
func TestAScanVisitsWhatMovesOnce(t *testing.T) {
	const scanned = 500 // more than a page
	server := start(t, "")
	for _, down := range []bool{false, true} {
		o := server.options()
		o.Prefix = map[bool]string{false: "up", true: "down"}[down]
		s := openAt(t, o)
		for range 2 {
			add(t, s, scanned/2)
		}
		by := time.Hour
		if down {
			by = -by
		}
		seen := map[store.Key]int{}
		err := s.Scan(ctx, store.Range{NewestFirst: down}, func(l store.Listed) (bool, error) {
			if seen[l.Key]++; seen[l.Key] > 1 {
				return false, fmt.Errorf("%s is visited again", l.Key)
			}
			_, err := s.Change(ctx, []store.Key{l.Key}, func(_ store.Key, r *store.Record) store.Edit {
				r.Due = r.Due.Add(by)
				return store.Edit{Keep: true}
			}, nil)
			return true, err
		})
		if err != nil || len(seen) != scanned {
			t.Errorf("visited %d of %d, %v", len(seen), scanned, err)
		}
	}
}
