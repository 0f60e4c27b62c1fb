package engine

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Need is what a run needs next.
type Need struct {
	// Ready are the steps whose turn has come, in order. Each may be dispatched beside the others.
	Ready []string
	// Postponed are the steps whose turn has come and that wait for a slot or token of their tool: whoever has it may start
	// them, although the record names a later time for everyone else.
	Postponed []string
	// At is when the run must be looked at again if nothing else happens: a waiting attempt, a resend, the deadline. Zero
	// once the run has ended.
	At run.Time
	// Expired: the deadline has passed and nothing is decided yet; call Expire.
	Expired bool
}

// Next says what the run needs now. It is total: every record has an answer, and nothing is changed.
func (r *Run) Next(now run.Time) Need {
	if r.End != nil {
		return Need{}
	}
	n := Need{}
	if r.Decided == nil {
		n.At = r.Deadline
		n.Expired = now >= r.Deadline
	}
	if r.Decided != nil || n.Expired {
		return n
	}
	doubt := r.inDoubt()
	for i, s := range r.Steps {
		at, turn := r.turn(i)
		if s.State == run.Unknown && s.Doubt.Resend {
			at, turn = s.Doubt.Next, true // no-blind-repeat's exception: idempotent_for
		} else if doubt {
			continue // blocked-by-unknown
		}
		if !turn {
			continue
		}
		if at <= now {
			n.Ready = append(n.Ready, s.Name)
			continue
		}
		if s.Postponed {
			n.Postponed = append(n.Postponed, s.Name)
		}
		n.At = min(n.At, at)
	}
	return n
}

// turn says whether the step's turn has come but for the time, and the time.
func (r *Run) turn(i int) (at run.Time, ok bool) {
	s := r.Steps[i]
	if !s.waits() || s.StoppedBy != "" || s.Waived {
		return 0, false
	}
	if r.Restored && s.mayRefer() && slices.ContainsFunc(s.sources(), func(name string) bool { return r.before(name, i) == nil }) {
		return 0, false // what it refers to comes with the job
	}
	if s.Parallel {
		for _, name := range s.sources() {
			if from := r.before(name, i); from != nil && (!from.passed() || from.waits() && !from.Waived) {
				return 0, false
			}
		}
		return s.NotBefore, true
	}
	for _, earlier := range r.Steps[:i] {
		if !earlier.passed() {
			return 0, false
		}
	}
	return s.NotBefore, true
}

// waits: the step is not in flight and has no end.
func (s *Step) waits() bool { return s.State == run.Ready || s.State == run.Waiting }

// passed: a later step of a job without parallel need not wait for this one any more.
func (s *Step) passed() bool {
	switch s.State {
	case run.OK, run.Fatal, run.NeedsHuman, run.Cancelled:
		return true
	}
	return s.Waived || s.StoppedBy != ""
}

// before finds an earlier step by name.
func (r *Run) before(name string, i int) *Step {
	for _, s := range r.Steps[:i] {
		if s.Name == name {
			return s
		}
	}
	return nil
}

var fromKey = []byte(`$from`)

// mayRefer is a cheap first look; an escaped spelling of the key is left to the full parse.
func (s *Step) mayRefer() bool {
	text := s.Args.Text()
	return bytes.Contains(text, fromKey) || bytes.Contains(text, []byte(`\u`))
}

// sources are the steps that the args refer to.
func (s *Step) sources() []string {
	if !s.mayRefer() {
		return nil
	}
	var out []string
	for _, ref := range strictjson.References(s.Args.Text()) {
		if step, _, ok := strictjson.ParseReference(ref); ok {
			out = append(out, step)
		}
	}
	return out
}

// Fetch lists the steps whose results must be read back from AGENTRUN_RESULTS before this step can be resolved: step name
// to the sequence of its ok outcome.
func (r *Run) Fetch(step string) map[string]uint64 {
	s := r.Step(step)
	if s == nil {
		return nil
	}
	var out map[string]uint64
	for _, name := range s.sources() {
		from := r.Step(name)
		if from == nil || from.State != run.OK || len(from.Result) > 0 || from.Omitted || from.ResultRef != nil || from.OutcomeSeq == 0 {
			continue
		}
		if _, have := r.fetched[name]; have {
			continue
		}
		if out == nil {
			out = map[string]uint64{}
		}
		out[name] = from.OutcomeSeq
	}
	return out
}

// FetchObjects lists the large results that must be read from the object store before this step can be resolved, by step.
func (r *Run) FetchObjects(step string) map[string]*envelope.ObjectRef {
	s := r.Step(step)
	if s == nil {
		return nil
	}
	var out map[string]*envelope.ObjectRef
	for _, name := range s.sources() {
		from := r.Step(name)
		if from == nil || from.State != run.OK || from.ResultRef == nil {
			continue
		}
		if _, have := r.fetched[name]; have {
			continue
		}
		if out == nil {
			out = map[string]*envelope.ObjectRef{}
		}
		out[name] = from.ResultRef
	}
	return out
}

// Fetched gives the record a result that was read back; nil if it has expired.
func (r *Run) Fetched(step string, result json.RawMessage) {
	if r.fetched == nil {
		r.fetched = map[string]json.RawMessage{}
	}
	r.fetched[step] = result
}

// resolve is the step's args with every $from replaced, checked as a job's are. Those that refer to nothing are the step's own.
func (r *Run) resolve(i int) (args *strictjson.Args, bad string, err error) {
	s := r.Steps[i]
	if !s.mayRefer() || len(strictjson.References(s.Args.Text())) == 0 {
		return s.Args, "", nil
	}
	text, bad, err := r.substitute(i)
	if err != nil {
		return nil, bad, err
	}
	args, err = strictjson.ParseArgs(text, strictjson.Bounds{MaxBytes: run.MaxArgsBytes, MaxDepth: run.MaxArgsDepth})
	return args, "", err
}

// substitute replaces every $from by the value at its pointer in the named earlier step's result.
func (r *Run) substitute(i int) (args json.RawMessage, bad string, err error) {
	return strictjson.Substitute(r.Steps[i].Args.Text(), run.MaxArgsBytes, func(ref string) (json.RawMessage, bool) {
		name, ptr, ok := strictjson.ParseReference(ref)
		if !ok {
			return nil, false
		}
		from := r.before(name, i)
		if from == nil || from.State != run.OK || from.Omitted {
			return nil, false
		}
		result := from.Result
		if len(result) == 0 {
			result = r.fetched[name]
		}
		if len(result) == 0 {
			return nil, false
		}
		return strictjson.Pointer(result, ptr)
	})
}
