package engine

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Defaults are what the config file adds to a run's first job (contract §10).
type Defaults struct {
	Owner     string
	Workflow  string
	Actor     string
	Budget    budget.Limits
	MaxBudget *budget.Ceiling
	// MessageMax is how many bytes one message may have at the server, without its headers; 0 is as many as the contract
	// allows. A record, a result in it and a letter are bounded by it too.
	MessageMax int
}

// Message is the stream message that brought a job.
type Message struct {
	Seq   uint64
	Time  run.Time // the stream's timestamp
	Queue string
	Trace string // traceparent header
	Data  []byte
}

// Create makes the record of a run from its first job. A job that is JOB_INVALID ends the run at once, with a letter.
func Create(id run.ID, m Message, d Defaults, now run.Time) *Run {
	j, err := run.ParseJob(m.Data, id)
	if err != nil {
		return createInvalid(id, nil, m, d, err.(*run.JobError), now)
	}
	limits := budget.Fill(j.Budget, d.Budget)
	if name := budget.Exceeds(limits, d.MaxBudget); name != "" {
		return createInvalid(id, j, m, d, &run.JobError{Field: "/budget/" + name, Problem: "is above what the config allows"}, now)
	}
	if field := missing(j, d); field != "" {
		return createInvalid(id, j, m, d, &run.JobError{Field: field, Problem: "is required: the config has no default"}, now)
	}
	if idle(j) {
		return createInvalid(id, j, m, d, &run.JobError{Field: "/steps", Problem: noSteps}, now)
	}
	if len(j.Waive) > 0 {
		return createInvalid(id, j, m, d, &run.JobError{Field: "/waive/0", Problem: "names no step that can be waived"}, now)
	}
	r := blank(id, j, m, d, now)
	r.Budget, r.More = limits, j.More
	r.Jobs = []JobRef{{Seq: m.Seq, At: m.Time}}
	if j.Priority != nil {
		r.Priority = *j.Priority
	}
	r.Deadline = now.Add(limits.Elapsed())
	if j.Deadline != 0 && j.Deadline < r.Deadline {
		r.Deadline = j.Deadline
	}
	r.append(j, nil, now)
	if r.tooLarge() {
		return createInvalid(id, j, m, d, &run.JobError{Problem: fmt.Sprintf("would make a run record above %d bytes", r.recordMax())}, now)
	}
	r.size = stepBytes + r.stepsSize()
	r.charge(j, now)
	r.Expire(now) // a deadline that has passed, or no time at all: nothing is started, whatever bounds the clock has
	r.conclude(now)
	return r
}

// missing names the first field that the first job must have and that the config does not default (contract §3).
func missing(j *run.Job, d Defaults) string {
	switch {
	case j.Workflow == "" && d.Workflow == "":
		return "/workflow"
	case j.Owner == "" && d.Owner == "":
		return "/owner"
	case j.Actor == "" && d.Actor == "":
		return "/actor"
	}
	return ""
}

// NoOwner owns the letters of jobs that name no readable owner where the config has no default either: a letter always
// has one.
const NoOwner = "unowned"

func blank(id run.ID, j *run.Job, m Message, d Defaults, now run.Time) *Run {
	r := &Run{
		Schema: RecordSchema, Tenant: id.Tenant, RunID: id.Run, Queue: m.Queue, Trace: m.Trace, Episode: 1, Priority: run.DefaultPriority,
		CreatedAt: now, UpdatedAt: now, Deadline: now, Steps: []*Step{},
		Workflow: d.Workflow, Owner: d.Owner, Actor: d.Actor, Budget: d.Budget,
		messageMax: d.MessageMax,
	}
	if r.Owner == "" {
		r.Owner = NoOwner
	}
	if j != nil {
		take := func(p *string, v string) {
			if v != "" {
				*p = v
			}
		}
		take(&r.Workflow, j.Workflow)
		take(&r.Owner, j.Owner)
		take(&r.Actor, j.Actor)
		r.Intent = j.Intent
	}
	if r.Owner == "" {
		r.Owner = NoOwner
	}
	r.note(Event{At: now, Kind: EventAccepted})
	return r
}

func createInvalid(id run.ID, j *run.Job, m Message, d Defaults, bad *run.JobError, now run.Time) *Run {
	if j == nil {
		j = salvage(m.Data)
	}
	r := blank(id, j, m, d, now)
	r.Jobs = []JobRef{{Seq: m.Seq, At: m.Time}}
	r.Invalid = &InvalidJob{Raw: m.Data[:min(len(m.Data), r.rawMax())], Size: len(m.Data)}
	row := envelope.RowFor(envelope.CodeJobInvalid, envelope.Read)
	r.end(End{Outcome: envelope.Fatal, Row: &row, Details: invalidDetails(bad), At: now})
	r.conclude(now)
	return r
}

func invalidDetails(bad *run.JobError) envelope.Details {
	if bad == nil || bad.Field == "" {
		return nil
	}
	return envelope.Details{"field": clip(bad.Field)}
}

// clip keeps a detail within its 256 bytes, and its characters whole: stored and read again it must be the same text.
func clip(s string) string {
	const most = 256
	if len(s) <= most {
		return s
	}
	n := most
	for n > most-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// salvage reads the owner of a job that is readable JSON but no valid job.
func salvage(data []byte) *run.Job {
	j := new(run.Job)
	if strictjson.CheckJSON(data, strictjson.Bounds{MaxBytes: run.MaxJobBytes}) != nil {
		return j
	}
	strictjson.Members(data, func(key string, v json.RawMessage) bool {
		var s string
		if key == "owner" && json.Unmarshal(v, &s) == nil && run.ValidID(s) {
			j.Owner = s
		}
		return true
	})
	return j
}

// idle: the job names no step, waives none and does not keep its run open. All that it can do is to close an open run; in
// any other place it is most likely a job whose steps were misspelt, and must not end ok with nothing done.
func idle(j *run.Job) bool { return len(j.Steps) == 0 && len(j.Waive) == 0 && !j.More }

const noSteps = "is empty: a job without steps keeps a run open (more) or closes one that is open"

// closedByIdle: an idle job has closed the run, so that another is taken for its repeat.
func (r *Run) closedByIdle() bool {
	return slices.ContainsFunc(r.Jobs, func(seen JobRef) bool { return seen.Closer })
}

// Accepted says what a job came to.
type Accepted struct {
	Changed bool // the record must be written
	Refused int  // refusals that this job added
}

// Append takes a further job of the run (contract §3): new steps, repeats, amendments, waivers, refusals. The same stream
// message again changes nothing.
func (r *Run) Append(m Message, d Defaults, now run.Time) Accepted {
	for _, seen := range r.Jobs {
		if seen.Seq == m.Seq && seen.At == m.Time {
			return Accepted{}
		}
	}
	before := r.Refusals
	j, err := run.ParseJob(m.Data, r.ID())
	accepted := false
	switch {
	case r.closed():
		// RUN_CLOSED goes before any other code.
		r.refuseClosed(j, now)
	case err != nil:
		r.refuse("", "", envelope.CodeJobInvalid, invalidDetails(err.(*run.JobError)), now)
	default:
		accepted = r.take(j, m, d, now)
	}
	refused := r.Refusals - before
	if !accepted && refused == 0 {
		return Accepted{}
	}
	r.Jobs = append(r.Jobs, JobRef{Seq: m.Seq, At: m.Time, Closer: accepted && idle(j)})
	if len(r.Jobs) > maxJobRefs {
		r.Jobs = r.Jobs[len(r.Jobs)-maxJobRefs:]
	}
	r.conclude(now)
	return Accepted{Changed: true, Refused: refused}
}

// maxJobRefs bounds how many messages a record remembers: a message that is delivered again after so many later jobs
// meets known steps, which repeat nothing either.
const maxJobRefs = 4096

// closed: the run has ended, or its end is decided and only what is in flight is waited for.
func (r *Run) closed() bool { return r.End != nil || r.Decided != nil }

// outcomeNow is the end a closed run has or is about to have.
func (r *Run) outcomeNow() envelope.Word {
	switch {
	case r.End != nil:
		return r.End.Outcome
	case r.Decided.Why == ByCancel:
		return envelope.Cancelled
	case r.Decided.Why == ByStep:
		if s := r.Step(r.Decided.Step); s != nil && s.State == run.Fatal {
			return envelope.Fatal
		}
	}
	return envelope.NeedsHuman
}

func (r *Run) refuseClosed(j *run.Job, now run.Time) {
	details := envelope.Details{"run_outcome": string(r.outcomeNow())}
	if j == nil {
		r.refuse("", "", envelope.CodeRunClosed, details, now)
		return
	}
	// Cancelled while its job still waited in a queue: the steps are known from that job, and it was never accepted.
	unaccepted := len(r.Jobs) == 0 && r.Cancel != nil
	refused := false
	for i := range j.Steps {
		if s := r.Step(j.Steps[i].Step); unaccepted || s == nil || s.Digest != digestOf(&j.Steps[i]) {
			r.refuse(j.Steps[i].Step, j.Steps[i].Tool, envelope.CodeRunClosed, details, now)
			refused = true
		}
	}
	unheard := len(j.Steps) == 0 && j.More != r.More || idle(j) && !r.closedByIdle()
	if !refused && (unaccepted || len(j.Waive) > 0 || unheard) {
		r.refuse("", "", envelope.CodeRunClosed, details, now)
	}
}

// take accepts what a readable job brings into a run that goes on. It reports whether anything was accepted.
func (r *Run) take(j *run.Job, m Message, d Defaults, now run.Time) bool {
	if bad := r.checkWaive(j); bad != nil {
		r.refuse("", "", envelope.CodeJobInvalid, invalidDetails(bad), now)
		return false
	}
	if idle(j) && !r.More && !r.closedByIdle() {
		r.refuse("", "", envelope.CodeJobInvalid, invalidDetails(&run.JobError{Field: "/steps", Problem: noSteps}), now)
		return false
	}
	adds := r.added(j)
	if adds > 0 && !r.fits(adds) {
		r.refuse("", "", envelope.CodeJobInvalid, nil, now)
		return false
	}
	news, amends, refused := r.sort(j, now)
	// A repeat may close the run, never open it again: an earlier job that was published twice can come after the last one.
	closes := r.More && !j.More
	waives := slices.ContainsFunc(j.Waive, func(w string) bool { return !r.Step(w).Waived })
	changed := len(news) > 0 || amends > 0 || waives || closes
	if !changed || refused > 0 && len(news) == 0 && amends == 0 && !waives {
		return false // only known steps, or only refused ones: no state, no budget and no end changes
	}
	if r.Restored {
		r.adopt(j, m, d)
		defer r.reorder(j)
	}
	r.More = j.More
	r.size += adds // until the record is encoded: jobs and results that come together must fit together
	for _, w := range j.Waive {
		s := r.Step(w)
		if s.Waived {
			continue
		}
		s.Waived, s.StoppedBy = true, ""
		r.note(Event{At: now, Kind: EventWaive, Step: w, By: r.Actor})
	}
	r.restart()
	r.append(j, news, now)
	r.charge(j, now)
	return true
}

// checkWaive: only a fatal step that did nothing, or a step that such a one stopped before it started, may be waived.
func (r *Run) checkWaive(j *run.Job) *run.JobError {
	for i, w := range j.Waive {
		s := r.Step(w)
		if s != nil && s.Waived {
			continue // a repeat
		}
		if s != nil && slices.ContainsFunc(j.Steps, func(js run.JobStep) bool { return js.Step == w && digestOf(&js) != s.Digest }) {
			return &run.JobError{Field: "/waive/" + strconv.Itoa(i), Problem: "names a step that the same job amends"}
		}
		fatal := s != nil && s.State == run.Fatal && s.Fail.Row.CommitState == envelope.NotCommitted
		stopped := s != nil && s.waits() && s.Attempt == 0 && s.StoppedBy != ""
		if !fatal && !stopped || r.contradicted(s) {
			return &run.JobError{Field: "/waive/" + strconv.Itoa(i), Problem: "names no step that can be waived"}
		}
	}
	return nil
}

// sort tells new steps from repeats, amendments and refusals; it applies the amendments and writes the refusals.
func (r *Run) sort(j *run.Job, now run.Time) (news []int, amends, refused int) {
	for i := range j.Steps {
		js := &j.Steps[i]
		s := r.Step(js.Step)
		switch {
		case s == nil:
			news = append(news, i)
		case s.Digest == digestOf(js):
			if s.State == run.Fatal && s.Fail.Row.Directive == envelope.AfterInputFix && !s.Waived {
				r.refuse(s.Name, s.Tool, envelope.CodeIdenticalRetry, nil, now)
				refused++
			}
		case s.Tool == js.Tool && s.amendable(r):
			s.propose(js.Checked())
			r.proposedAnew(s)
			amends++
			r.note(Event{At: now, Kind: EventAmend, Step: s.Name, Attempt: s.Attempt, By: r.Actor})
		default:
			r.refuse(s.Name, s.Tool, envelope.CodeStepConflict, nil, now)
			refused++
		}
	}
	return news, amends, refused
}

func (s *Step) amendable(r *Run) bool {
	return s.State == run.Fatal && !s.Waived && s.Fail.Row.Directive == envelope.AfterInputFix &&
		s.Fail.Row.CommitState == envelope.NotCommitted && r.proposalsLeft(s) > 0 && !r.contradicted(s)
}

// contradicted: kept evidence says that the step was done after all, or may have been, whatever it ended with.
func (r *Run) contradicted(s *Step) bool {
	return slices.ContainsFunc(r.Evidence, func(k Kept) bool { return k.Step == s.Name && k.CommitState != envelope.NotCommitted })
}

// propose makes changed args a new proposal under the same operation ref (same-ref): validated and authorised again when
// the step's turn comes.
func (s *Step) propose(args *strictjson.Args) {
	s.Args, s.Digest = args, digest(s.Tool, args)
	s.Proposal++
	s.Proposals++
	if s.State != run.Ready {
		s.to(run.Ready)
	}
	s.Fail, s.NotBefore, s.Approved, s.Asked = nil, 0, "", nil
	s.FirstSent = 0
	s.Unchecked = true
}

// restart lets the stopped steps start after all whose stopper is done or waived.
func (r *Run) restart() {
	for _, s := range r.Steps {
		if s.StoppedBy == "" {
			continue
		}
		if by := r.Step(s.StoppedBy); by == nil || by.State == run.OK || by.Waived {
			s.StoppedBy = ""
		}
	}
}

// append adds the job's steps: all, or those with these indexes.
func (r *Run) append(j *run.Job, only []int, now run.Time) {
	add := func(js *run.JobStep) {
		r.Steps = append(r.Steps, &Step{
			Name: js.Step, Tool: js.Tool, Args: js.Checked(), Digest: digestOf(js), Optional: js.Optional,
			Parallel: j.Parallel, State: run.Ready, Proposal: 1, Proposals: 1, Unchecked: true,
		})
	}
	if only == nil && len(r.Steps) == 0 {
		for i := range j.Steps {
			add(&j.Steps[i])
		}
		return
	}
	for _, i := range only {
		add(&j.Steps[i])
	}
}

// charge books what the caller's model spent. Usage may be seen above its limit; the job that takes it above ends the run
// before any of its steps.
func (r *Run) charge(j *run.Job, now run.Time) {
	turns := int64(0)
	if len(j.Steps) > 0 {
		turns = 1
	}
	r.Spent.Charge(j.Usage, turns)
	if code := budget.Over(r.Spent, r.Budget); code != "" {
		first := ""
		for _, s := range r.Steps {
			if s.notStarted() {
				first = s.Name
				break
			}
		}
		r.decide(Decision{Why: ByBudget, Code: code, Step: first, At: now})
	}
}

// added is how many bytes the job's new steps and amendments bring into the record; repeats bring none.
func (r *Run) added(j *run.Job) int {
	n := 0
	for i := range j.Steps {
		js := &j.Steps[i]
		if s := r.Step(js.Step); s == nil || s.Digest != digestOf(js) {
			n += len(js.Args) + stepBytes
		}
	}
	return n
}

// stepBytes is about what a step takes in the record besides its args and result.
const stepBytes = 400

func (r *Run) tooLarge() bool { return len(r.Intent)+4096+r.stepsSize() > r.recordMax() }

// stepsSize is about what the steps of a run that has no results yet take in the record.
func (r *Run) stepsSize() int {
	n := 0
	for _, s := range r.Steps {
		n += len(s.Args.Text()) + stepBytes
	}
	return n
}

// digest identifies a proposal: tool and args, whatever the order of keys and the white space.
func digest(tool string, args *strictjson.Args) string {
	sum := args.Sum(tool)
	return base64.RawURLEncoding.EncodeToString(sum[:18])
}

func digestOf(s *run.JobStep) string { return digest(s.Tool, s.Checked()) }
