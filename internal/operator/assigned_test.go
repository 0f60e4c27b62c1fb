package operator

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

type uncounted struct{}

func (uncounted) LettersOpen(string, string, int) {}
func (uncounted) ForgetLetters()                  {}

// TestAnAssignedLetterInAnyOrder: records and letters are watched beside each other, so that the news that a letter was handed
// on comes in any order, and once it was, a message for the former owner may still come. The index ends with the new owner.
func TestAnAssignedLetterInAnyOrder(t *testing.T) {
	id := run.ID{Tenant: "acme", Run: "r1"}
	letter := func(owner string, seq uint64, assigned envelope.Time) func(*Index) {
		data, err := json.Marshal(deadletter.Letter{Summary: deadletter.Summary{
			Schema: deadletter.Schema, ID: "acme/r1/1", Tenant: id.Tenant, RunID: id.Run, Owner: owner, ReasonCode: "x", CreatedAt: 1000, AssignedAt: assigned,
		}})
		if err != nil {
			t.Fatal(err)
		}
		return func(x *Index) { x.Letter(port.Letter{Report: port.Stored, ID: id, Owner: owner, Seq: seq, Data: data}) }
	}
	header := func(owner, state string, seq uint64) func(*Index) {
		return func(x *Index) {
			x.Run(port.Change{Report: port.Stored, ID: id, Seq: seq, Header: port.Header{State: state, Episode: 1, Letter: owner}})
		}
	}
	first, ended := letter("a", 1, 0), header("a", "fatal", 10)
	handed, moved := header("b", "fatal", 11), letter("b", 2, 2000)
	late := letter("a", 3, 0) // a claim of before, published after
	for name, order := range map[string][]func(*Index){
		"record first":        {ended, first, handed, moved},
		"letter first":        {ended, first, moved, handed},
		"a late message":      {ended, first, moved, handed, late},
		"late, record behind": {ended, first, moved, late, handed},
	} {
		x := NewIndex(uncounted{}, time.Now)
		for _, step := range order {
			step(x)
		}
		if x.letters.byID[id] == nil {
			t.Errorf("%s: the letter is forgotten", name)
		}
		for owner, want := range map[string]int{"a": 0, "b": 1, "": 1} {
			if n := x.letters.total(port.AllTenants, &Filter{Owner: owner}); n != want {
				t.Errorf("%s: owner %q has %d letters", name, owner, n)
			}
		}
		header("", "fatal", 12)(x)
		if n := x.letters.total(port.AllTenants, &Filter{}); n != 0 {
			t.Errorf("%s: after it was settled %d are open", name, n)
		}
	}
}
