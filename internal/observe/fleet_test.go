package observe

import (
	"fmt"
	"strings"
	"testing"
)

// A queue that nobody pulls is named, one that is pulled again or empty is not named any more, and publishers who invent
// names of queues neither fill the memory nor hide a queue that executors have.
func TestQueuesAreShownByName(t *testing.T) {
	o := New(Reconciler)
	shown := func(want ...string) {
		t.Helper()
		body := scrape(t, o)
		for _, line := range want {
			line, absent := strings.CutPrefix(line, "!")
			if strings.Contains(body, "\nagentrun_jobs_"+line) == absent {
				t.Errorf("shown: %t: %s", !absent, line)
			}
		}
	}
	o.Queues([]Queue{{"default", 3, true}, {"defualt", 2, false}, {"gone", 0, false}}, 0)
	shown(`waiting{queue="default"} 3`, `waiting{queue="defualt"} 2`, `waiting{queue="gone"} 0`, `unpulled{queue="defualt"} 2`,
		`!unpulled{queue="default"}`, `!unpulled{queue="gone"}`)
	o.Queues([]Queue{{"default", 3, false}, {"defualt", 2, true}}, 4)
	shown(`unpulled{queue="default"} 3`, `waiting{queue="defualt"} 2`, `waiting{queue="other"} 4`, `unpulled{queue="other"} 4`,
		`!unpulled{queue="defualt"}`, `!waiting{queue="gone"}`)

	o.Config("a")
	o.Config("b")
	o.Configs(map[string]int{"default": 2, "slow": 1})
	if body := scrape(t, o); strings.Contains(body, `digest="a"`) || !strings.Contains(body, `agentrun_config_info{digest="b"} 1`) || !strings.Contains(body, `agentrun_fleet_configs{queue="default"} 2`) {
		t.Error("configs are not shown as they are now")
	}

	var invented []Queue
	for i := range 2 * labelCap {
		invented = append(invented, Queue{fmt.Sprintf("invented-%d", i), 1, false})
	}
	o.Queues(invented, 0)
	o.Queues(append(invented, Queue{"late", 5, true}), 0)
	shown(`waiting{queue="late"} 5`)
	o.Queues(append(invented, Queue{"late", 5, false}), 0)
	shown(`unpulled{queue="late"} 5`)
	if n := strings.Count(scrape(t, o), "\nagentrun_jobs_waiting{"); n > labelCap+2 {
		t.Errorf("%d queues are shown", n)
	}
}
