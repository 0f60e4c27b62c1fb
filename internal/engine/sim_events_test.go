package engine_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

var simTools = []string{"read", "write", "always", "blind", "keyed", "peratt", "none", "asks", "strict", "read", "write"}

// newStep draws a step that the run does not have yet.
func (w *sim) newStep() string {
	w.names++
	name := fmt.Sprintf("s%d", w.names)
	tool := simTools[w.c.next(len(simTools))]
	args := `{"n":1}`
	switch w.c.next(8) {
	case 0:
		args = `{"bad":1}` // refused by the schema of "strict" only
	case 1:
		if w.names > 1 {
			args = fmt.Sprintf(`{"x":{"$from":"s%d#/id"}}`, 1+w.c.next(w.names-1))
		}
	}
	more := []string{}
	if w.c.next(5) == 0 {
		more = append(more, `"optional":true`)
	}
	return step(name, tool, args, more...)
}

func (w *sim) firstJob() []byte {
	steps := []string{}
	for range 1 + w.c.next(4) {
		steps = append(steps, w.newStep())
	}
	members := []string{}
	if w.c.next(3) == 0 {
		members = append(members, `"more":true`)
	}
	if w.c.next(3) == 0 {
		members = append(members, `"parallel":true`)
	}
	if w.c.next(4) == 0 {
		members = append(members, fmt.Sprintf(`"budget":{"max_tool_calls":%d}`, w.c.next(4)))
	}
	data := job(strings.Join(members, ","), steps...)
	w.say("first job %s", data)
	w.first = data
	return data
}

// laterJob draws new steps, repeats, amendments, waivers, usage, or the close.
func (w *sim) laterJob() {
	steps := []string{}
	if w.c.next(2) == 0 && w.names < 4 {
		steps = append(steps, w.newStep())
	}
	if w.c.next(2) == 0 && len(w.r.Steps) > 0 {
		s := w.r.Steps[w.c.next(len(w.r.Steps))]
		args := string(s.Args.Text())
		if w.c.next(2) == 0 || args == "" {
			args = fmt.Sprintf(`{"n":%d}`, w.c.next(4))
		}
		steps = append(steps, step(s.Name, s.Tool, args))
	}
	members := []string{fmt.Sprintf(`"more":%v`, w.c.next(2) == 0)}
	if w.c.next(3) == 0 {
		members = append(members, `"parallel":true`)
	}
	if w.c.next(3) == 0 && len(w.r.Steps) > 0 {
		members = append(members, fmt.Sprintf(`"waive":[%q]`, w.r.Steps[w.c.next(len(w.r.Steps))].Name))
	}
	if w.c.next(6) == 0 {
		members = append(members, fmt.Sprintf(`"usage":{"input_tokens":%d}`, w.c.next(3)*501))
	}
	data := job(strings.Join(members, ","), steps...)
	w.seq++
	m := engine.Message{Seq: w.seq, Time: w.now, Queue: "default", Data: data}
	a := w.r.Append(m, defaults(), w.now)
	w.say("job %s: %+v", data, a)
	if again := w.r.Append(m, defaults(), w.now); a.Changed && again.Changed {
		w.broken("repeat", "the same message changes the run twice")
	}
}

// simCopy is a copy of the store, with what had been published by then.
type simCopy struct {
	record []byte
	seen   map[string]string
	ends   map[int]bool
	lastN  int
}

func (w *sim) backup() {
	data, err := w.r.Encode()
	if err != nil {
		w.broken("encode", "%s", err)
	}
	w.copy = &simCopy{data, maps.Clone(w.seen), maps.Clone(w.ends), w.lastN}
	w.say("the store is copied")
}

// facts are what the executors' journals know, in any order; some of them know of dispatches that the record refused, and
// died before they could say so.
func (w *sim) facts() (facts []engine.Fact) {
	add := func(f engine.Fact) { facts = slices.Insert(facts, w.c.next(len(facts)+1), f) }
	for _, f := range w.flights {
		if f.Effect != envelope.Write || f.released {
			continue
		}
		one := engine.Fact{Intent: engine.Intent{
			Dispatch: f.ID, Tenant: "acme", RunID: "run_1", Queue: "default", Owner: "platform", Budget: w.r.Budget, Step: f.Step, Tool: f.Tool,
			Args: f.Args.Text(), Proposed: f.Proposed, Optional: f.Optional, Attempt: f.Attempt, Proposal: f.Proposal, Key: f.Key, At: f.at,
		}}
		if w.copy != nil && w.c.next(6) == 0 {
			refused := one
			refused.Intent.Dispatch += "-refused"
			add(refused)
		}
		if f.answered && !f.reply.NoReply && !f.reply.NotSent {
			one.Effect = &engine.EffectFact{Dispatch: f.ID, Reply: f.reply, At: f.at}
		}
		add(one)
	}
	return facts
}

// loseStore: every record is gone, or an older copy of the store is put back, and the executors make this one again from
// their journals. Where it was gone the job comes again.
func (w *sim) loseStore() {
	facts := w.facts()
	if len(facts) == 0 {
		return
	}
	w.lost, w.lookups = true, nil
	older := w.copy
	if older == nil {
		w.say("the store is lost")
		w.seen, w.ends, w.lastN = map[string]string{}, map[int]bool{}, 0
		w.r = engine.Restored(facts[0], defaults(), w.now)
	} else {
		w.say("the copy of the store is put back")
		w.seen, w.ends, w.lastN = older.seen, older.ends, older.lastN
		r, err := engine.Decode(older.record)
		if err != nil {
			w.broken("decode", "%s", err)
		}
		w.r = r
	}
	if w.c.next(2) == 0 {
		w.say("merge all %d: %s", len(facts), w.r.MergeAll(facts, w.tools, w.src()))
		w.store()
		facts = nil
	}
	for _, f := range facts {
		w.merge(f)
	}
	w.seq++
	if older == nil {
		a := w.r.Append(engine.Message{Seq: w.seq, Time: w.now, Queue: "default", Data: w.first}, defaults(), w.now)
		w.say("the first job again: %+v", a)
	}
	w.check()
}

// merge: what is terminal stays, but for args that came after the copy. The truth is checked once all are merged: nobody
// pulls before that.
func (w *sim) merge(f engine.Fact) {
	var state run.State
	proposal := 0
	if s := w.r.Step(f.Intent.Step); s != nil {
		state, proposal = s.State, s.Proposal
	}
	v := w.r.Merge(f, w.tools, w.src())
	w.say("merge %s of %s attempt %d effect %v: %s", f.Intent.Dispatch, f.Intent.Step, f.Intent.Attempt, f.Effect != nil, v)
	w.store()
	if s := w.r.Step(f.Intent.Step); s != nil && (state == run.Fatal || state == run.Cancelled || state == run.OK) && s.State != state && s.Proposal == proposal {
		w.broken(engine.RuleOneEnd, "step %s was %s and is %s by what a journal knows", s.Name, state, s.State)
	}
}

func (w *sim) event() {
	switch k := w.c.next(30); {
	case k < 6:
		if n := w.r.Next(w.now); len(n.Ready) > 0 {
			w.begin(n.Ready[w.c.next(len(n.Ready))])
		}
	case k < 12:
		w.flightEvent()
	case k < 16:
		w.lookupEvent()
	case k < 18:
		w.now = w.now.Add(time.Duration([]int{1, 100, 1000, 3000, 12_000, 61_000}[w.c.next(6)]) * time.Millisecond)
	case k < 19:
		w.laterJob()
	case k < 20:
		if v := w.r.LeaseEnded(w.tools, w.src()); v == engine.Applied {
			w.say("lease ended")
			w.holder++
		}
	case k < 21:
		w.say("escalate: %s", w.r.Escalate(w.tools, w.src()))
	case k < 22:
		w.say("expire: %s", w.r.Expire(w.now))
	case k < 23:
		if w.c.next(4) == 0 {
			w.say("cancel: %s", w.r.CancelRun("alice", "stop", w.now))
		}
	case k < 24:
		if n := w.r.Next(w.now); len(n.Ready) > 0 && w.r.Step(n.Ready[0]).State != run.Unknown {
			w.say("postpone %s: %s", n.Ready[0], w.r.Postpone(n.Ready[0], w.now.Add(time.Second), w.now))
		}
	case k < 25:
		w.reportEvent()
	case k < 26:
		w.publish()
	default:
		w.operatorEvent()
	}
}

func (w *sim) begin(name string) {
	w.ids++
	holder := fmt.Sprintf("h%d", w.holder)
	if w.r.Lease != nil {
		holder = w.r.Lease.Holder
	}
	st := engine.Start{
		Dispatch: engine.DispatchID(fmt.Sprintf("d%d", w.ids)), LeaseID: fmt.Sprintf("l%d", w.ids), Holder: holder, Seconds: 30,
		Worker: holder, Random: 0.5,
	}
	if d := w.r.Begin(name, w.tools, st, w.now); d != nil {
		w.dispatched(d)
	} else {
		w.say("%s may not start", name)
	}
}

// flightEvent lets a dispatch's reply arrive, at its time or long after it; or its holder gives it back.
func (w *sim) flightEvent() {
	if len(w.flights) == 0 {
		return
	}
	f := w.flights[w.c.next(len(w.flights))]
	s := w.r.Carrying(f.ID)
	holds := s != nil && s.State == run.Executing
	switch {
	case holds && w.r.Cutting() && f.Effect == envelope.Read:
		w.say("cut %s: %s", f.ID, w.r.CutRead(f.ID, w.now))
	case holds && w.c.next(6) == 0:
		sent := f.sent
		if !sent {
			f.released = true
		}
		f.answered = f.answered && sent // who gives a call back has no reply of it
		w.say("give back %s sent %v: %s", f.ID, sent, w.r.GiveBack(f.ID, sent, w.tools, w.src()))
	case f.answered && (holds || !f.reply.NotSent):
		w.say("reply of %s ok %v %s: %s", f.ID, f.reply.OK, f.reply.Row.Code, w.r.Reply(f.ID, f.reply, w.tools, w.src()))
	}
}

// look sends a lookup. Inside the window it may miss what was done, or tell of an earlier dispatch that was given up; after it
// only a failure keeps it from the truth.
func (w *sim) look(l engine.Lookup, certain bool) {
	a := asked{l, envelope.Lookup{Answer: envelope.Absent}}
	has, earlier := w.got(l)
	ended := envelope.Lookup{Answer: envelope.Failed, Row: envelope.RowFor(envelope.CodeStateConflict, envelope.Write)}
	switch done := w.truth(l.Step) > 0; {
	case !certain && w.c.next(8) == 0:
		a.answer = later(time.Duration(w.c.next(4)) * 700 * time.Millisecond)
	case !certain && has && w.c.next(4) == 0:
		a.answer = pending(time.Duration(w.c.next(3)) * 700 * time.Millisecond)
	case has && !done && w.c.next(2) == 0, earlier && !l.Proves && w.c.next(3) == 0:
		a.answer = ended
	case !certain && w.c.next(3) == 0:
		a.answer = undecided
	case w.liar && w.c.next(2) == 0:
	case done && (l.Proves || certain || w.c.next(2) == 0):
		a.answer = found(`{"id":"c"}`)
		if !certain && w.c.next(6) == 0 {
			a.answer = envelope.Lookup{
				Answer: envelope.Found, EvidenceRef: "ev",
				Invalid: []envelope.Code{envelope.CodeResultInvalid, envelope.CodeResultTooLarge}[w.c.next(2)],
			}
		}
	}
	w.lookups = append(w.lookups, a)
	w.say("lookup of %s proves %v will say %s", l.Dispatch, l.Proves, a.answer.Answer)
}

// got says what the tool has of a step: the dispatch that is looked up, and an earlier one that was never done.
func (w *sim) got(l engine.Lookup) (has, earlier bool) {
	for _, f := range w.flights {
		if f.Step != l.Step || !f.sent || !f.committed && !f.reply.NoReply && f.reply.Row.CommitState != envelope.Unknown {
			continue
		}
		has = has || f.ID == l.Dispatch
		earlier = earlier || f.ID != l.Dispatch && !f.committed
	}
	return has, earlier
}

func (w *sim) deliver(i int) {
	a := w.lookups[i]
	w.answers[a.answer.Answer]++
	w.say("lookup of %s says %s: %s", a.Dispatch, a.answer.Answer, w.r.Looked(a.Dispatch, a.answer, a.Proves, w.tools, w.src()))
}

func (w *sim) lookupEvent() {
	switch w.c.next(3) {
	case 0:
		if l := w.r.Lookups(w.now); len(l) > 0 {
			w.look(l[w.c.next(len(l))], false)
		}
	case 1:
		if len(w.lookups) > 0 {
			w.deliver(w.c.next(len(w.lookups)))
		}
	default:
		for _, d := range w.r.Doubts() {
			if v := w.tools[w.r.Carrying(d).Tool].Verify; v != nil && v.HasWindow && w.windowPassed(d) {
				w.say("window of %s over: %s", d, w.r.WindowOver(d, w.now))
			}
		}
	}
}

// reportEvent: a webhook tells the truth, with or without the attempt.
func (w *sim) reportEvent() {
	if len(w.flights) == 0 {
		return
	}
	f := w.flights[w.c.next(len(w.flights))]
	res := engine.Resolution{CommitState: envelope.NotCommitted, EvidenceRef: "ev"}
	attempt := f.Attempt
	if f.committed {
		res.CommitState = envelope.Committed
		if w.c.next(2) == 0 {
			res.Result = json.RawMessage(`{"id":"c"}`)
		}
		attempt *= w.c.next(2)
	}
	v, err := w.r.Report(f.Step, attempt, "webhook", res, w.tools, w.now)
	w.say("report %s attempt %d %s: %s %v", f.Step, attempt, res.CommitState, v, err)
}

func (w *sim) publish() {
	for _, scope := range []envelope.Scope{envelope.StepScope, envelope.RunScope} {
		n := 0
		for i := range w.r.Owed {
			if w.r.Owed[i].Scope == scope {
				n = w.r.Owed[i].N
			}
		}
		if n > 0 {
			w.seq++
			w.r.Published(scope, n, w.seq)
		}
	}
}

// operatorEvent: a person answers the open letter by what its actions allow, truthfully; or tries something else.
func (w *sim) operatorEvent() {
	if w.r.Letter == nil || w.r.End == nil {
		return
	}
	call := engine.Call{Letter: w.r.Letter.ID, By: "alice", Reason: "looked into it", At: w.now}
	open := w.r.Letter.Open
	episode := w.r.Episode
	var allowed []deadletter.Action
	var l *deadletter.Letter
	if open {
		l = w.r.BuildLetter()
		allowed = l.AllowedActions
		if len(l.Open) > 0 {
			call.Step = l.Open[w.c.next(len(l.Open))].Step
		}
	}
	if w.c.next(8) == 0 {
		to := [...]string{"platform", "billing"}[w.c.next(2)]
		changed, refused := w.r.Assign(call, to)
		w.say("assign %+v to %s: %v, %v", call, to, changed, refused)
		if l := w.r.Letter; l.Open != open || w.r.Episode != episode || changed && (l.Owner != to || l.Claim != nil) {
			w.broken(engine.RuleNothingVanishes, "the letter handed to %s is %+v", to, l)
		}
		return
	}
	var what deadletter.Action
	var refused *engine.Refusal
	switch w.c.next(5) {
	case 0:
		what = deadletter.Discard
		_, refused = w.r.Discard(call)
	case 1, 2:
		what = deadletter.Resolve
		res := engine.Resolution{CommitState: envelope.NotCommitted}
		if call.Step != "" && w.truth(call.Step) > 0 {
			res = engine.Resolution{CommitState: envelope.Committed, Result: json.RawMessage(`{"id":"c"}`), EvidenceRef: "ev"}
		}
		_, refused = w.r.Resolve(call, res, w.tools)
	case 3:
		what = deadletter.Approve
		_, refused = w.r.Approve(call)
	default:
		what = deadletter.Replay
		with := engine.ReplayWith{}
		if w.c.next(2) == 0 {
			more := int64(3)
			with.Add = &budget.Request{MaxToolCalls: &more, MaxInputTokens: &more}
		}
		if w.c.next(2) == 0 {
			with.Args = json.RawMessage(fmt.Sprintf(`{"n":%d}`, w.c.next(4)))
		}
		call.Step = ""
		_, refused = w.r.Replay(call, with)
	}
	w.say("%s %+v: %v", what, call, refused)
	if refused == nil && open && !slices.Contains(allowed, what) {
		w.broken(engine.RuleNoBlindRepeat, "%s was accepted, the letter allows %v", what, allowed)
	}
	if refused != nil && w.r.Episode != episode {
		w.broken(engine.RuleOneEnd, "a refused call began episode %d", w.r.Episode)
	}
}
