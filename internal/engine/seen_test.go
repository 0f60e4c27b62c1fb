package engine_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
)

// status is a failure with the status that it came with, as a connector classifies it.
func (d *driver) status(code envelope.Code, effect envelope.Effect, status int) envelope.Reply {
	r := fails(code, effect)
	r.Details = envelope.Details{"http_status": json.Number(strconv.Itoa(status)), "field": "/x"}
	r.Seen = envelope.Seen{SentAt: d.now.Add(time.Millisecond), AnsweredAt: d.now.Add(3 * time.Millisecond), HTTPStatus: status}
	return r
}

// A letter says how the last attempt failed, however the run ended with it, and what each attempt looked like.
func TestLettersSayHowItFailed(t *testing.T) {
	for _, c := range []struct {
		name   string
		play   func(d *driver)
		want   envelope.Details
		status []int // of the attempts
	}{
		{"refused", func(d *driver) {
			d.call("a", d.status(envelope.CodeUpstreamDenied, envelope.Write, 403))
		}, envelope.Details{"http_status": json.Number("403"), "field": "/x"}, []int{403}},
		{"attempts exhausted", func(d *driver) {
			for _, status := range []int{500, 502, 503} {
				d.call("a", d.status(envelope.CodeUpstreamUnavailable, envelope.Write, status))
				d.pass(time.Minute)
			}
		}, envelope.Details{"http_status": json.Number("503"), "field": "/x", "last_code": "UPSTREAM_UNAVAILABLE"}, []int{500, 502, 503}},
		{"unknown, and the lookups fail", func(d *driver) {
			id := d.call("a", d.status(envelope.CodeOutcomeUnknown, envelope.Write, 504))
			for range 3 {
				d.looked(id, envelope.Lookup{Answer: envelope.Undecided, Seen: envelope.Seen{HTTPStatus: 401}}, false)
			}
		}, envelope.Details{"http_status": json.Number("504"), "field": "/x"}, []int{504, 401, 401, 401}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := create(t, job(`"budget":{"max_elapsed_seconds":600}`, step("a", "write", "{}")))
			c.play(d)
			if d.r.Letter == nil {
				t.Fatalf("no letter: %q", d.words())
			}
			l := d.r.BuildLetter()
			for what, got := range map[string]envelope.Details{
				"letter": l.SafeDetails, "open step": l.Open[0].SafeDetails, "run's outcome": d.last(envelope.RunScope).Envelope.SafeDetails,
				"view": d.r.View(d.now).Steps[0].SafeDetails,
			} {
				for key, want := range c.want {
					if got[key] != want {
						t.Errorf("%s: %s is %v, want %v", what, key, got[key], want)
					}
				}
			}
			var status []int
			for _, a := range l.Attempts {
				status = append(status, a.HTTPStatus)
				if a.Kind == deadletter.Dispatch && (a.SentAt == 0 || a.AnsweredAt != a.SentAt.Add(2*time.Millisecond)) {
					t.Errorf("attempt %d was sent %s and answered %s", a.Attempt, a.SentAt, a.AnsweredAt)
				}
			}
			if !slices.Equal(status, c.status) {
				t.Errorf("statuses %v, want %v", status, c.status)
			}
		})
	}
}

// What comes to be seen of a call after others had settled it is shown too.
func TestALateReplyIsSeen(t *testing.T) {
	d := create(t, job("", step("a", "write", "{}")))
	x := d.begin("a")
	d.leaseEnded()
	reply := ok(`{"id":1}`)
	reply.Seen = envelope.Seen{SentAt: d.now, AnsweredAt: d.now, HTTPStatus: 201}
	d.reply(x.ID, reply)
	d.ended(envelope.OK, "", "")
	if e := d.r.View(d.now).History[1]; e.Kind != engine.EventDispatch || e.HTTPStatus != 201 || e.SentAt != d.now || e.StartedAt != start {
		t.Errorf("%+v", e)
	}
}

// A run in flight shows who holds it, for how long nothing was heard, and what is left of the lease.
func TestTheViewOfALease(t *testing.T) {
	d := create(t, job("", step("a", "write", "{}")))
	d.begin("a")
	if l := d.r.Held(d.now, d.now.Add(10*time.Second)); l.Worker != "w1" || l.Holder != "h1" || l.Seconds != 30 || l.Left != 20 || l.SignAt != d.now {
		t.Errorf("%+v", l)
	}
	if l := d.r.Held(d.now, d.now.Add(time.Minute)); l.Left != 0 {
		t.Errorf("%v seconds are left of a lease that is over", l.Left)
	}
}

// Args and results are those that the record knows or that were read back.
func TestPayloads(t *testing.T) {
	d := create(t, job(`"more":true`, step("a", "read", `{"n":1}`), step("b", "read", `{"x":{"$from":"a#/id"}}`), step("c", "read", "{}")))
	d.call("a", ok(`{"id":"i1"}`))
	d.call("b", ok(`{"big":"`+strings.Repeat("x", 5<<10)+`"}`))
	d.r.Published(envelope.StepScope, d.r.StepN, 7)
	d.check()
	if got := d.r.Stored(); len(got) != 1 || got["b"] != 7 {
		t.Fatalf("stored %v", got)
	}
	d.r.Fetched("b", json.RawMessage(`{"big":"y"}`))
	p := d.r.Payloads()
	if len(p) != 3 || string(p[0].Args) != `{"n":1}` || string(p[0].Result) != `{"id":"i1"}` || string(p[1].Args) != `{"x":"i1"}` ||
		string(p[1].Result) != `{"big":"y"}` || p[2].Result != nil {
		t.Errorf("%+v", p)
	}
}
