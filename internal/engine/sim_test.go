package engine_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// The simulation plays random events against one run and a truth about what its tools really did. After every event the
// nine rules are checked, those that a record can check by itself and those that need the truth.

// chance gives the next number in [0, n); more is false once there is no more randomness and the run is to settle.
type chance struct {
	next func(n int) int
	more func() bool
}

func seeded(seed uint64, events int) chance {
	g := rand.New(rand.NewPCG(seed, 1))
	return chance{g.IntN, func() bool { events--; return events >= 0 }}
}

func bytewise(data []byte) chance {
	events := 0
	return chance{
		func(n int) int {
			if len(data) == 0 {
				return 0
			}
			b := int(data[0])
			data = data[1:]
			return b % n
		},
		func() bool { events++; return len(data) > 0 && events < 200 },
	}
}

// flight is one dispatch as it really went.
type flight struct {
	engine.Dispatch
	at        envelope.Time
	sent      bool
	committed bool // what the tool did
	released  bool
	reply     envelope.Reply
	answered  bool // the holder (or its journal) has a reply to give
	holder    string
}

type asked struct {
	engine.Lookup
	answer envelope.Lookup
}

type sim struct {
	t       testing.TB
	c       chance
	r       *engine.Run
	tools   registry
	now     envelope.Time
	seq     uint64
	ids     int
	holder  int
	names   int
	flights []*flight
	lookups []asked
	answers map[envelope.Answer]int
	seen    map[string]string // outcome id → its bytes
	ends    map[int]bool      // episodes with a terminal run outcome
	lastN   int
	checks  int
	first   []byte
	copy    *simCopy // an older copy of the store
	lost    bool     // the store of records was lost and made again from the journals
	liar    bool     // its lookups may say absent although it was done: nothing is promised then but that nobody panics
	log     []string
}

func (w *sim) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *sim) broken(rule, format string, args ...any) {
	w.t.Helper()
	data, _ := json.Marshal(w.r)
	w.t.Fatalf("%s: %s\nevents:\n  %s\nrecord:\n%s", rule, fmt.Sprintf(format, args...), strings.Join(w.log, "\n  "), data)
}

// truth is how often the operation of a step was really done.
func (w *sim) truth(name string) int {
	keys := map[string]bool{}
	n := 0
	for _, f := range w.flights {
		if f.Step != name || !f.committed {
			continue
		}
		if f.Tool == "keyed" && keys[f.Key] {
			continue // the tool keeps its promise
		}
		keys[f.Key] = true
		n++
	}
	return n
}

// play plays one run and returns how many lookups had which answer.
func play(t testing.TB, c chance) map[envelope.Answer]int {
	w := &sim{t: t, c: c, tools: tools(), now: start, seen: map[string]string{}, ends: map[int]bool{}, answers: map[envelope.Answer]int{}}
	defer func() {
		if p := recover(); p != nil {
			text := fmt.Sprint(p)
			t.Fatalf("panic: %s\nevents:\n  %s", text, strings.Join(w.log, "\n  "))
		}
	}()
	w.seq = 1
	w.liar = c.next(5) == 4
	w.r = engine.Create(runID, engine.Message{Seq: 1, Time: w.now, Queue: "default", Data: w.firstJob()}, defaults(), w.now)
	w.check()
	for c.more() {
		w.event()
		w.check()
		if c.next(20) == 0 {
			w.backup()
		}
	}
	if c.next(5) == 4 {
		w.loseStore()
	}
	w.calm()
	return w.answers
}

// check is what must hold after every event.
func (w *sim) check() {
	w.t.Helper()
	for _, v := range w.r.Violations() {
		w.broken(v.Rule, "%s", v.What)
	}
	w.checkOutcomes()
	if w.checks++; w.checks%3 == 0 { // a driver applies several events between two writes, too
		w.store()
	}
	w.checkTruth()
	calls := 0
	for _, f := range w.flights {
		if !f.released {
			calls++
		}
	}
	if int64(calls) != w.r.Spent.ToolCalls && !w.lost || w.r.Spent.ToolCalls > w.r.Budget.MaxToolCalls {
		w.broken(engine.RuleBudgetBeforeWork, "%d calls were made, %d are booked, %d are allowed", calls, w.r.Spent.ToolCalls, w.r.Budget.MaxToolCalls)
	}
	if w.r.End == nil && w.r.Lease == nil && w.r.Due(w.now) == 0 {
		w.broken(engine.RuleNothingVanishes, "nobody works on the run and it is never due")
	}
	if w.r.Letter != nil && w.r.Letter.Open {
		if _, err := json.Marshal(w.r.BuildLetter()); err != nil {
			w.broken(engine.RuleNothingVanishes, "the letter cannot be written: %s", err)
		}
	}
}

// store writes the record and reads it back: nothing may be lost.
func (w *sim) store() {
	w.t.Helper()
	data, err := w.r.Encode()
	if err != nil {
		w.broken("encode", "%s", err)
	}
	r, err := engine.Decode(data)
	if err != nil {
		w.broken("decode", "%s", err)
	}
	if again, err := r.Encode(); err != nil || string(again) != string(data) {
		w.broken("encode", "the record changes by being read: %v\n%s", err, again)
	}
	w.r = r
	w.checkOutcomes()
}

// checkOutcomes: numbered without gaps, one end for each episode, and the same number always has the same bytes.
func (w *sim) checkOutcomes() {
	w.t.Helper()
	for i := range w.r.Owed {
		o := w.r.Outcome(&w.r.Owed[i])
		data, err := strictjson.Marshal(o)
		if err != nil {
			w.broken("outcome", "%s", err)
		}
		before, known := w.seen[o.ID]
		if known && before != string(data) {
			w.broken("outcome", "%s changes:\n%s\n%s", o.ID, before, data)
		}
		if known {
			continue
		}
		w.seen[o.ID] = string(data)
		w.say("    → %s %s %s %s", o.ID, o.Step, o.Outcome, o.ReasonCode)
		if o.Scope == envelope.RunScope {
			if o.N != w.r.Episode || w.ends[o.N] {
				w.broken(engine.RuleOneEnd, "run outcome %d in episode %d", o.N, w.r.Episode)
			}
			w.ends[o.N] = true
			continue
		}
		if o.N != w.lastN+1 {
			w.broken("outcome", "step outcome %d follows %d", o.N, w.lastN)
		}
		w.lastN = o.N
	}
	if (w.r.End != nil) != w.ends[w.r.Episode] {
		w.broken(engine.RuleOneEnd, "episode %d ended %v, its outcome was made %v", w.r.Episode, w.r.End != nil, w.ends[w.r.Episode])
	}
}

// checkTruth: what the record says has happened has happened, and nothing happened twice.
func (w *sim) checkTruth() {
	w.t.Helper()
	for _, s := range w.r.Steps {
		if w.r.End != nil && (s.State == run.Executing || s.State == run.Unknown) {
			w.broken(engine.RuleOneEnd, "the run has ended, step %s is %s", s.Name, s.State)
		}
		if s.Effect != envelope.Write || s.Attempt == 0 {
			continue
		}
		n := w.truth(s.Name)
		if w.liar {
			continue
		}
		if n > 1 {
			w.broken(engine.RuleNoBlindRepeat, "step %s was done %d times", s.Name, n)
		}
		if s.State == run.OK && n == 0 {
			w.broken(engine.RuleProvenOK, "step %s is ok and was never done", s.Name)
		}
		not := s.Fail != nil && s.Fail.Row.CommitState == envelope.NotCommitted || s.Fail == nil && s.State == run.Ready
		if s.Unsettled && (s.Fail == nil || s.Fail.Row.Category != envelope.Conflict) {
			not = false // the contract takes a gateway's refusal of a resend for the operation's; the next dispatch is guarded
		}
		for _, k := range w.r.Evidence {
			not = not && (k.Step != s.Name || k.CommitState == envelope.NotCommitted) // a person decides what is true
		}
		if not && n > 0 && s.State != run.Executing && s.State != run.Unknown {
			w.broken(engine.RuleNoBlindRepeat, "step %s (%s) counts as not done and was done", s.Name, s.State)
		}
	}
}

// dispatched is where a call leaves: every rule about a second dispatch is checked against the truth here.
func (w *sim) dispatched(d *engine.Dispatch) {
	w.t.Helper()
	f := &flight{Dispatch: *d, at: w.now, holder: w.r.Lease.Holder}
	first := w.now
	for _, e := range w.flights {
		if e.Step != d.Step {
			continue
		}
		if e.ID == d.ID {
			w.broken(engine.RuleIntentFirst, "dispatch id %s is used twice", d.ID)
		}
		if d.Effect == envelope.Write && e.Ref != d.Ref {
			w.broken(engine.RuleSameRef, "%s became %s", e.Ref, d.Ref)
		}
		if e.Key == d.Key && e.Proposal == d.Proposal {
			first = min(first, e.at)
		}
		if d.Effect != envelope.Write || !e.committed || w.liar {
			continue
		}
		same := e.Key == d.Key && string(e.Args.Text()) == string(d.Args.Text())
		if d.Tool != "keyed" || !same || w.now >= first.Add(w.tools[d.Tool].IdempotentFor) {
			w.broken(engine.RuleNoBlindRepeat, "%s is sent again as %s after %s did it", d.Step, d.Key, e.ID)
		}
	}
	resend := w.r.Step(d.Step).Unsettled // an unknown step itself, whose tool promises idempotent_for
	for _, s := range w.r.Steps {
		if s.State == run.Unknown && s.Name != d.Step && !resend {
			w.broken(engine.RuleBlockedByUnknown, "%s was dispatched while %s is unknown", d.Step, s.Name)
		}
	}
	w.answer(f)
	w.flights = append(w.flights, f)
	w.say("dispatch %s attempt %d as %s key %s: sent %v committed %v", f.Step, f.Attempt, f.ID, f.Key, f.sent, f.committed)
}

// answer draws what the tool does, and what comes back.
func (w *sim) answer(f *flight) {
	f.answered = true
	done := w.truth(f.Step) > 0
	if f.Effect == envelope.Write {
		f.reply = w.writeReply(f, done)
	} else {
		f.sent = true
		f.reply = w.readReply()
	}
	if f.Effect == envelope.Write && f.reply.NoReply {
		f.answered = w.c.next(2) == 0 // the worker may be lost with it
	}
}

func (w *sim) readReply() envelope.Reply {
	switch w.c.next(8) {
	case 0:
		return fails(envelope.CodeUpstreamUnavailable, envelope.Read)
	case 1:
		return envelope.Reply{NoReply: true}
	case 2:
		r := fails(envelope.CodeUpstreamRateLimited, envelope.Read)
		r.RetryAfter = int64([]int{10, 2000, 100_000, 3_600_000}[w.c.next(4)])
		return r
	case 3:
		return fails([]envelope.Code{
			envelope.CodeUpstreamRejectedInput, envelope.CodeInternalError, envelope.CodeResourceNotFound, envelope.CodeUpstreamDenied,
			envelope.CodeResultInvalid, envelope.CodeResultTooLarge,
		}[w.c.next(6)], envelope.Read)
	}
	return ok(`{"id":12345678901234567890}`)
}

func (w *sim) writeReply(f *flight, done bool) envelope.Reply {
	k := w.c.next(10)
	if k == 0 {
		r := fails(envelope.CodeUpstreamUnavailable, envelope.Write)
		r.NotSent = true
		return r
	}
	f.sent = true
	if k == 1 { // a gateway answers before the tool sees the request
		r := fails([]envelope.Code{envelope.CodeUpstreamRateLimited, envelope.CodeUpstreamDenied}[w.c.next(2)], envelope.Write)
		r.RetryAfter = int64(w.c.next(3)) * 4000
		return r
	}
	if done { // only a key that the tool honours leads here
		if k < 4 {
			return fails(envelope.CodeStateConflict, envelope.Write)
		}
		f.committed = true
		return ok(`{"id":"c"}`)
	}
	f.committed = w.c.next(3) > 0
	switch {
	case k < 4:
		return silent()
	case k == 4:
		return fails([]envelope.Code{envelope.CodeResultInvalid, envelope.CodeInternalError, envelope.CodeOutcomeUnknown}[w.c.next(3)], envelope.Write)
	case f.committed:
		r := ok(`{"id":"c"}`)
		r.LookUp = w.c.next(5) == 0 && w.tools[f.Tool].Verify != nil
		return r
	}
	return fails([]envelope.Code{
		envelope.CodeUpstreamRejectedInput, envelope.CodeStateConflict, envelope.CodeUpstreamDenied, envelope.CodeUpstreamUnavailable,
	}[w.c.next(4)], envelope.Write)
}

// calm: no more faults. From every state the run must come to an end by what the drivers do.
func (w *sim) calm() {
	w.t.Helper()
	w.say("no more faults")
	for i := 0; w.r.End == nil; i++ {
		if i > 400 {
			w.broken(engine.RuleNothingVanishes, "the run does not come to an end")
		}
		if !w.progress() {
			due := w.r.Due(w.now)
			if w.r.Lease != nil {
				due = max(due, w.now+1)
			}
			if due == 0 {
				w.broken(engine.RuleNothingVanishes, "nothing to do and never due")
			}
			if due <= w.now {
				w.broken(engine.RuleNothingVanishes, "due, and nothing to do")
			}
			w.now = due
			w.say("time passes to %s", w.now)
		}
		w.check()
	}
}

// progress does what the drivers would do now; false if there is nothing.
func (w *sim) progress() bool {
	if w.r.Next(w.now).Expired {
		w.r.Expire(w.now)
		return true
	}
	for _, s := range w.r.Steps {
		if s.State != run.Executing {
			continue
		}
		if f := w.flight(s.Dispatch); f.answered {
			w.r.Reply(f.ID, f.reply, w.tools, w.src())
			w.say("reply of %s applied", f.ID)
		} else {
			w.r.LeaseEnded(w.tools, w.src())
			w.say("lease ended")
		}
		return true
	}
	for _, d := range w.r.Doubts() {
		if s := w.r.Carrying(d); w.tools[s.Tool].Verify != nil && w.tools[s.Tool].Verify.HasWindow && w.windowPassed(d) {
			w.r.WindowOver(d, w.now)
			w.say("window of %s over", d)
			return true
		}
	}
	if l := w.r.Lookups(w.now); len(l) > 0 {
		w.look(l[0], true)
		w.deliver(len(w.lookups) - 1)
		return true
	}
	if n := w.r.Next(w.now); len(n.Ready) > 0 {
		w.begin(n.Ready[0])
		return true
	}
	return w.r.Escalate(w.tools, w.src()) == engine.Applied
}

func (w *sim) windowPassed(d engine.DispatchID) bool {
	s := w.r.Carrying(d)
	return w.now >= s.Doubt.Since.Add(w.tools[s.Tool].Verify.Window)
}

func (w *sim) flight(d engine.DispatchID) *flight {
	for _, f := range w.flights {
		if f.ID == d {
			return f
		}
	}
	w.broken(engine.RuleIntentFirst, "no dispatch %s was made", d)
	return nil
}

func (w *sim) src() engine.Source {
	return engine.Source{By: "w", At: w.now, Start: w.now, Random: float64(w.c.next(10)) / 10}
}

func TestRandomEvents(t *testing.T) {
	const seeds = 2000
	began := time.Now()
	answers := map[envelope.Answer]int{}
	for seed := range uint64(seeds) {
		for a, n := range play(t, seeded(seed, 40)) {
			answers[a] += n
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, a := range []envelope.Answer{envelope.Found, envelope.Absent, envelope.Undecided, envelope.Later, envelope.Pending, envelope.Failed} {
		if answers[a] == 0 {
			t.Errorf("no lookup answers %s", a)
		}
	}
	t.Logf("%d runs, lookups %v, in %s", seeds, answers, time.Since(began).Round(time.Millisecond))
}

func FuzzEvents(f *testing.F) {
	for seed := range uint64(20) {
		g := rand.New(rand.NewPCG(seed, 2))
		data := make([]byte, 200)
		for i := range data {
			data[i] = byte(g.IntN(256))
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { play(t, bytewise(data)) })
}
