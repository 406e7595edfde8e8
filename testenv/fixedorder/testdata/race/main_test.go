// Package race prints what chance decides.
package race

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/testenv/fixedorder"
)

func TestRace(t *testing.T) {
	order, err := strconv.ParseUint(os.Getenv("ORDER"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	debug.SetGCPercent(-1)
	fixedorder.Begin(order)
	defer fixedorder.End()
	synctest.Test(t, func(*testing.T) {
		var order []string
		var mu sync.Mutex
		say := func(what ...any) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, fmt.Sprint(what...))
		}
		a, b := make(chan int, 30), make(chan int, 30)
		numbers := map[int]bool{}
		for i := range 30 {
			a <- i
			b <- i
			numbers[i] = true
		}
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				time.Sleep(time.Second)
				select {
				case n := <-a:
					say(i, " a", n)
				case n := <-b:
					say(i, " b", n)
				}
			})
		}
		all.Wait()
		for n := range numbers {
			say("map ", n)
		}
		say("number ", rand.Uint64())
		fmt.Println(order)
	})
}
