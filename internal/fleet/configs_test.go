package fleet

import (
	"maps"
	"strings"
	"testing"
)

// What differs between executors of one queue is named, with who has which; between queues it is on purpose.
func TestDifferencesOfConfigs(t *testing.T) {
	t.Parallel()
	parts := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for _, p := range pairs {
			k, v, _ := strings.Cut(p, "=")
			m[k] = v
		}
		return m
	}
	both := []string{"bulk", "default"}
	w1 := Offer{ID: "w1", Config: "aa", Queues: both, Parts: parts("tools.pay=1", "tools.load=1", "defaults=1")}
	w2 := Offer{ID: "w2", Config: "aa", Queues: both, Parts: w1.Parts}
	w3 := Offer{ID: "w3", Config: "bb", Queues: both, Parts: parts("tools.pay=2", "tools.load=1", "tools.tell=1", "defaults=1")}
	other := Offer{ID: "other", Config: "cc", Queues: []string{"slow"}, Parts: parts("tools.pay=3")}
	old := Offer{ID: "old", Queues: both}
	large := Offer{ID: "large", Config: "dd", Queues: []string{"slow"}}
	for name, x := range map[string]struct {
		executors []Offer
		counts    map[string]int
		want      []string
	}{
		"nobody":       {nil, map[string]int{}, nil},
		"all the same": {[]Offer{w1, w2, other, old}, map[string]int{"bulk": 1, "default": 1, "slow": 1}, nil},
		"two configs": {
			[]Offer{w1, w2, w3, other},
			map[string]int{"bulk": 2, "default": 2, "slow": 1},
			[]string{"executors of queue bulk, default work by different configs: aa has w1, w2; bb has w3; they differ in tool pay, tool tell (not in that of w1, w2)"},
		},
		"too large to tell": {
			[]Offer{other, large},
			map[string]int{"slow": 2},
			[]string{"executors of queue slow work by different configs: cc has other; dd has large; they differ in something that is too much to tell"},
		},
	} {
		if got := ConfigsByQueue(x.executors); !maps.Equal(got, x.counts) {
			t.Errorf("%s: %v", name, got)
		}
		if got := strings.Join(Differences(x.executors), "\n"); got != strings.Join(x.want, "\n") {
			t.Errorf("%s: %s", name, got)
		}
	}
}
