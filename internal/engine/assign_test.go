package engine_test

import (
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/run"
)

// assign hands the letter on and says whether that changed anything.
func (d *driver) assign(c engine.Call, to string) (bool, *engine.Refusal) {
	d.t.Helper()
	changed, err := d.r.Assign(c, to)
	d.check()
	return changed, err
}

func TestAssign(t *testing.T) {
	d := held(t)
	first := d.r.Letter.Owner
	for name, x := range map[string]struct {
		call engine.Call
		to   string
		code string
	}{
		"no owner":          {d.by("alice"), "", run.BadRequest},
		"no identifier":     {d.by("alice"), "a.b", run.BadRequest},
		"nobody says so":    {d.by(""), "billing", run.BadRequest},
		"without a reason":  {engine.Call{By: "alice", At: d.now}, "billing", run.BadRequest},
		"about another one": {engine.Call{By: "alice", Reason: "r", Letter: "acme/run_1/9", At: d.now}, "billing", run.Conflict},
	} {
		if changed, err := d.assign(x.call, x.to); changed || err == nil || err.Code != x.code {
			t.Errorf("%s: %v, %v", name, changed, err)
		}
	}
	d.refused("", d.r.ClaimLetter("bob", d.now.Add(time.Minute), d.now))
	_, err := d.assign(d.by("alice"), "billing")
	d.refused(run.Claimed, err)
	d.pass(2 * time.Second)
	changed, err := d.assign(d.by("bob"), "billing") // who has the claim may
	d.refused("", err)
	l := d.r.BuildLetter()
	if !changed || l.Owner != "billing" || l.Claim != nil || l.AssignedAt != d.now || l.ID != d.r.Letter.ID || !d.r.Letter.Open {
		t.Errorf("%v: %+v", changed, l.Summary)
	}
	if h := d.r.History[len(d.r.History)-1]; h.Kind != engine.EventAssign || h.By != "bob" || h.Owner != "billing" || h.Reason == "" {
		t.Errorf("%+v", h)
	}
	if v := d.r.View(d.now); v.History[len(v.History)-1].Owner != "billing" {
		t.Errorf("what people see of it: %+v", v.History[len(v.History)-1])
	}
	written, notes := d.r.Letter.Assigned, len(d.r.History)
	d.pass(time.Second)
	for _, by := range []string{"bob", "alice"} { // again, or what is so already
		changed, err = d.assign(d.by(by), "billing")
		d.refused("", err)
		if changed || d.r.Letter.Assigned != written || len(d.r.History) != notes {
			t.Errorf("by %s again: %v, %+v", by, changed, d.r.Letter)
		}
	}
	changed, err = d.assign(d.by("alice"), first) // and back
	d.refused("", err)
	if !changed || d.r.Letter.Owner != first || d.r.Letter.Assigned != d.now {
		t.Errorf("back: %v, %+v", changed, d.r.Letter)
	}

	_, refused := d.r.Discard(d.by("carol"))
	d.refused("", refused)
	changed, err = d.assign(d.by("alice"), first)
	d.refused("", err) // its answer was lost
	if changed {
		t.Error("a settled letter was handed on")
	}
	_, err = d.assign(d.by("alice"), "billing")
	d.refused(run.NotFound, err)
}

// TestAssignIsOfOneLetter: the next episode's letter is again its tool's or job's owner's.
func TestAssignIsOfOneLetter(t *testing.T) {
	d := held(t)
	first := d.r.Letter.Owner
	_, err := d.assign(d.by("alice"), "billing")
	d.refused("", err)
	_, err = d.resolve(d.by("alice"), wasNotDone)
	d.refused("", err)
	d.call("a", silent())
	if l := d.r.Letter; l.Owner != first || l.Assigned != 0 || !l.Open {
		t.Errorf("%+v", l)
	}
}

// TestAssignedAlert: the new owner is told as the first was, and by a ticket of what raises no alert by itself.
func TestAssignedAlert(t *testing.T) {
	d := held(t)
	_, err := d.assign(d.by("alice"), "billing")
	d.refused("", err)
	if a := engine.Assigned(d.r.BuildLetter(), d.now); a.Owner != "billing" || a.Severity != deadletter.Page || a.RunID == "" {
		t.Errorf("%+v", a)
	}
	l := deadletter.Letter{Summary: deadletter.Summary{Tenant: "t", RunID: "r", Owner: "o", ReasonCode: "not_found"}}
	if _, own := engine.AlertOf(&l, d.now); own {
		t.Fatal("this reason raises one")
	}
	if a := engine.Assigned(&l, d.now); a.Severity != deadletter.Ticket || a.Owner != "o" || a.RunID != "r" || a.Summary == "" {
		t.Errorf("%+v", a)
	}
}
