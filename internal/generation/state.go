// Package generation decides whether the store of run records is the one that the fleet has agreed on. A store that has
// lost records (an older copy was put back, records were removed by hand, it was made anew) begins a new generation: every
// executor whose record is in the store, or that others remember, restores what its journal knows, and nobody takes work before all have.
//
// What it rests on: an executor keeps the highest sequence of AGENTRUN_RUNS that it has seen, and the revision of its own
// record there, beside its journal. A store that shows less has gone back. Processes tell one another how far they have seen
// it, and wait for one another after a start and on a new server, so that those see it too who did nothing since the copy.
package generation

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

// StateName is the name of the fleet's record of the present generation: agentrun.runs._fleet.store.
const StateName = "store"

// The schemas of the two kinds of records.
const (
	StateSchema  = "agentrun.store/v1"
	MemberSchema = "agentrun.executor/v1"
)

// Member is an executor as its record agentrun.runs._fleet.<journal id> names it. The record is kept as long as the journal
// keeps what it knows.
type Member struct {
	Schema   string        `json:"schema,omitempty"`
	Journal  string        `json:"journal"`            // the journal's random id
	Holder   string        `json:"holder,omitempty"`   // of its latest start
	ID       string        `json:"id"`                 // the --id: for people
	Host     string        `json:"host"`               // of the machine
	Dir      string        `json:"dir"`                // of the journal
	Replaces []string      `json:"replaces,omitempty"` // journals that were in this directory of this machine before, and are not any more
	At       envelope.Time `json:"at"`                 // when it was written
}

func (m Member) String() string {
	return fmt.Sprintf("%s on %s (journal %s in %s)", m.ID, m.Host, m.Journal, m.Dir)
}

// State is the record of the present generation.
type State struct {
	Schema     string        `json:"schema"`
	Generation string        `json:"generation"` // random
	Cause      string        `json:"cause"`      // what was found, for people
	By         string        `json:"by"`         // the --id of who found it
	At         envelope.Time `json:"at"`
	Awaits     []Member      `json:"awaits,omitempty"`   // whose journals are to be restored
	Restored   []string      `json:"restored,omitempty"` // the journals that are, or that a person said are lost

	Foreign strictjson.Foreign `json:"-"`
}

func decodeState(data []byte) (s State, err error) {
	if len(data) == 0 {
		return s, nil // the first generation has no record
	}
	var name struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(data, &name); err != nil {
		return s, fmt.Errorf("the record of the store's generation: %w", err)
	}
	if name.Schema != StateSchema {
		return s, fmt.Errorf("the record of the store's generation: %w: its schema is %q, this build reads %s", engine.ErrNewer, name.Schema, StateSchema)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("the record of the store's generation: %w", err)
	}
	_, err = strictjson.KeepForeign(&s, data)
	return s, err
}

func (s *State) encode() ([]byte, error) {
	data, err := strictjson.Marshal(s)
	if err != nil {
		return nil, err
	}
	return strictjson.AppendForeign(nil, s, data), nil
}

// Missing are the members whose journals are not restored yet.
func (s *State) Missing() (out []Member) {
	for _, m := range s.Awaits {
		if !slices.Contains(s.Restored, m.Journal) {
			out = append(out, m)
		}
	}
	return out
}

func (s *State) awaits(journal string) bool {
	return slices.ContainsFunc(s.Missing(), func(m Member) bool { return m.Journal == journal })
}

// awaited leaves out the journals that are not there any more, because another one is in their directory.
func awaited(members []Member) (out []Member) {
	gone := map[string]bool{}
	for _, m := range members {
		for _, j := range m.Replaces {
			gone[j] = true
		}
	}
	for _, m := range members {
		if !gone[m.Journal] {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Journal, b.Journal) })
	return out
}

// missingText names the members that are waited for, and what can be done.
func missingText(cause string, missing []Member) string {
	var names []string
	for i, m := range missing {
		if i == 5 {
			names = append(names, fmt.Sprintf("%d more", len(missing)-i))
			break
		}
		names = append(names, m.String())
	}
	return fmt.Sprintf("%s; nothing is taken in until the journals of these executors are restored: %s. Start them; for one that cannot start: executor journal restore --data DIR …, or, if its journal is lost: executor journal lost %s --nats …",
		cause, strings.Join(names, ", "), missing[0].Journal)
}
