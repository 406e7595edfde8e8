package redisstore_test

import (
	"testing"

	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

func TestServersTellHowTheyAreSetUp(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		one := o
		one.Config = "maxmemory 100mb\nmaxmemory-policy allkeys-lru\nappendfsync everysec"
		all, failover, err := redisstore.Survey(t.Context(), redisstore.Options{URL: redisnode.New(t, one).URL()})
		if err != nil || failover || len(all) != 1 {
			t.Fatalf("one server: %+v, %v, %v", all, failover, err)
		}
		if s := all[0]; s.Eviction != "allkeys-lru" || s.Max != 100<<20 || s.Used == 0 || !s.AppendOnly || s.Fsync != "everysec" || s.Replicas != 0 || s.TellsSyncs() != (o.Root != "") {
			t.Errorf("it says %+v", s)
		}
		all, failover, err = redisstore.Survey(t.Context(), redisstore.Options{URL: redisnode.NewSentinel(t, o).URL()})
		if err != nil || !failover || len(all) != 1 || all[0].Replicas != 2 {
			t.Errorf("with Sentinel: %+v, %v, %v", all, failover, err)
		}
		all, failover, err = redisstore.Survey(t.Context(), redisstore.Options{URL: redisnode.NewCluster(t, o).URL()})
		if err != nil || !failover || len(all) != 3 {
			t.Errorf("a cluster: %+v, %v, %v", all, failover, err)
		}
	})
}
