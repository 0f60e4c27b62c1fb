package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Executors that take the same queue should have the same config, but for the minutes in which it is changed: which of them
// gets a job is chance. Between queues nothing is compared.

// ConfigsByQueue counts the different configs of the executors of each queue. Who does not tell is left out.
func ConfigsByQueue(executors []Offer) map[string]int {
	out := map[string]int{}
	for queue, takers := range byQueue(executors) {
		out[queue] = len(byConfig(takers))
	}
	return out
}

func byQueue(executors []Offer) map[string][]Offer {
	out := map[string][]Offer{}
	for _, e := range executors {
		if e.Config == "" {
			continue
		}
		for _, queue := range e.Queues {
			out[queue] = append(out[queue], e)
		}
	}
	return out
}

func byConfig(executors []Offer) map[string][]Offer {
	out := map[string][]Offer{}
	for _, e := range executors {
		out[e.Config] = append(out[e.Config], e)
	}
	return out
}

// Differences says, one line for each queue whose executors have different configs, who has which, and in what they differ.
func Differences(executors []Offer) (lines []string) {
	queues := byQueue(executors)
	said := map[string][]string{} // by what is to say: one line for all queues of the same executors
	for _, queue := range slices.Sorted(maps.Keys(queues)) {
		configs := byConfig(queues[queue])
		if len(configs) < 2 {
			continue
		}
		var who []string
		for _, config := range slices.Sorted(maps.Keys(configs)) {
			var ids []string
			for _, e := range configs[config] {
				ids = append(ids, e.ID)
			}
			who = append(who, config+" has "+strings.Join(ids, ", "))
		}
		text := strings.Join(who, "; ") + "; they differ in " + strings.Join(partsThatDiffer(queues[queue]), ", ")
		said[text] = append(said[text], queue)
	}
	for _, text := range slices.Sorted(maps.Keys(said)) {
		lines = append(lines, fmt.Sprintf("executors of queue %s work by different configs: %s", strings.Join(said[text], ", "), text))
	}
	return lines
}

// partsThatDiffer names the tools and sections that are not the same in all configs, and who lacks one.
func partsThatDiffer(executors []Offer) []string {
	all := map[string]map[string]bool{} // the digests of a part; "" where somebody lacks it
	lack := map[string][]string{}
	for _, e := range executors {
		if e.Parts == nil {
			return []string{"something that is too much to tell"}
		}
		for part := range e.Parts {
			all[part] = map[string]bool{}
		}
	}
	var out []string
	for part, digests := range all {
		for _, e := range executors {
			if digests[e.Parts[part]] = true; e.Parts[part] == "" {
				lack[part] = append(lack[part], e.ID)
			}
		}
		if len(digests) < 2 {
			continue
		}
		name := part
		if tool, is := strings.CutPrefix(part, "tools."); is {
			name = "tool " + tool
		}
		if who := lack[part]; who != nil {
			name += " (not in that of " + strings.Join(who, ", ") + ")"
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
