package fleet

import (
	"testing"
	"time"
)

// What an executor has is known to the others as soon as they have heard of one another, and for the grace after it is gone.
func TestRoster(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	fleet := map[string]*Roster{}
	tools := map[string][]string{"a": {"pay", "load"}, "b": {"tell"}}
	var wire [][]byte
	for name := range tools {
		r := NewRoster(func() Offer { return Offer{Name: name, Queues: []string{"default"}, Tools: tools[name]} },
			func(data []byte) error { wire = append(wire, data); return nil }, func() time.Duration { return time.Minute })
		r.now = func() time.Time { return now }
		fleet[name] = r
	}
	carry := func() {
		for len(wire) > 0 {
			data := wire[0]
			wire = wire[1:]
			for _, r := range fleet {
				r.heard(data)
			}
		}
	}
	has := func(who, queue, tool string, want bool) {
		t.Helper()
		if got := fleet[who].Has(queue, tool); got != want {
			t.Errorf("%s says of %s in %s: %v", who, tool, queue, got)
		}
	}
	has("a", "default", "tell", false)
	_ = fleet["b"].Announce() // a new one tells once, and knows all
	carry()
	has("a", "default", "tell", true)
	has("b", "default", "pay", true)
	has("b", "default", "load", true)
	has("a", "default", "pay", false) // its own is no other's
	has("a", "other", "tell", false)

	tools["b"] = []string{"told"}
	_ = fleet["b"].Announce()
	carry()
	has("a", "default", "tell", true) // it had it, and may get it back
	has("a", "default", "told", true)

	fleet["a"].heard([]byte("no offer"))
	now = now.Add(time.Minute + 2*rosterEvery)
	has("a", "default", "told", true)
	has("a", "default", "tell", true)
	now = now.Add(time.Second)
	has("a", "default", "told", false)
	has("a", "default", "tell", false)
}
