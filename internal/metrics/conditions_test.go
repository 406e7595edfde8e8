package metrics

import (
	"fmt"
	"testing"

	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// Thousands of forgotten queues share a label, and take none of those of work queues.
func TestConditionsOfManyQueues(t *testing.T) {
	m := New(memstore.New(), func() (uint64, uint64, error) { return 1, 0, nil }, "test", "")
	var on []Condition
	var unconsumed []Unconsumed
	for i := range 5000 {
		name := fmt.Sprintf("q%04d", i)
		on = append(on, Condition{"no_consumer", name}, Condition{"queue_filling", name})
		unconsumed = append(unconsumed, Unconsumed{name, 2})
	}
	on = append(on, Condition{"no_consumer", "odd\xff"}, Condition{"no_consumer", `odd\xff`})
	m.Conditions(func() ([]Condition, []Unconsumed) { return on, unconsumed })
	all, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series, sum := map[string]int{}, map[string]float64{}
	for _, family := range all {
		for _, one := range family.Metric {
			series[family.GetName()]++
			sum[family.GetName()] += one.GetGauge().GetValue()
		}
	}
	if n := series["redrive_condition"]; n != 2*(mostShown+1) {
		t.Errorf("redrive_condition has %d series", n)
	}
	if n := series["redrive_unconsumed_messages"]; n != mostShown+1 || sum["redrive_unconsumed_messages"] != 10_000 {
		t.Errorf("redrive_unconsumed_messages has %d series, with %g messages", n, sum["redrive_unconsumed_messages"])
	}
	if len(m.queues) != 0 {
		t.Errorf("%d labels of work queues are taken", len(m.queues))
	}
}
