package engine

import (
	"encoding/json"
	"errors"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Judge looks at the steps that a job, an amendment or a new episode has brought, before anything of them starts: a tool
// that nobody knows, args that the tool does not take and a reference that nothing can resolve end their step at once,
// so that a mistake in the third step is not found after the first has written. What depends on the moment (permission,
// approval, budget, args with $from) is left to the step's turn, where all of this is checked again.
//
// The required steps that came with a wrong one do not start while it is wrong: in an open run they are stopped by it,
// else the run ends. elsewhere says whether another executor that takes this run's queue has a tool that this one does not
// know; such a step is left for that one. It reports whether the record must be written.
func (r *Run) Judge(tools run.Tools, elsewhere func(tool string) bool, now run.Time) bool {
	if r.closed() || r.Pending {
		return false
	}
	var wrong, beside []*Step
	for i, s := range r.Steps {
		if !s.Unchecked {
			continue
		}
		if !s.waits() || s.Waived {
			s.Unchecked = false
			continue
		}
		tool, known := tools.Tool(s.Tool)
		if !known && elsewhere(s.Tool) {
			beside = append(beside, s)
			continue
		}
		s.Unchecked = false
		if f := r.misfit(i, tool); f != nil {
			if tool != nil {
				s.Effect, s.Owner = tool.Effect, tool.Owner
			}
			r.fail(s, *f, now)
			wrong = append(wrong, s)
			continue
		}
		beside = append(beside, s)
	}
	for _, by := range wrong {
		if !r.More || by.Optional {
			continue
		}
		for _, s := range beside {
			if s.waits() && s.Attempt == 0 && s.StoppedBy == "" {
				s.StoppedBy = by.Name
			}
		}
	}
	if len(wrong) == 0 {
		return false
	}
	r.conclude(now)
	return true
}

// misfit is what is wrong with a step whatever happens before its turn; nil if that is not known. tool may be nil.
func (r *Run) misfit(i int, tool *run.Tool) *Fail {
	s := r.Steps[i]
	if tool == nil {
		return failure(envelope.CodeUnknownTool, nil)
	}
	if s.mayRefer() && len(strictjson.References(s.Args.Text())) > 0 {
		_, bad, err := strictjson.Substitute(s.Args.Text(), run.MaxArgsBytes, func(ref string) (json.RawMessage, bool) {
			name, _, ok := strictjson.ParseReference(ref)
			return json.RawMessage("0"), ok && r.before(name, i) != nil
		})
		if errors.Is(err, strictjson.ErrUnresolved) {
			return failure(envelope.CodeReferenceUnresolved, envelope.Details{"field": clip(bad)})
		}
		return nil
	}
	if tool.Fits != nil && s.Args != nil {
		if field, ok := tool.Fits(s.Args); !ok {
			return failure(envelope.CodeInvalidArgument, envelope.Details{"field": clip(field)})
		}
	}
	return nil
}

// proposedAnew: changed args of a step are judged before anything that it stopped ahead of it starts; what comes after it
// waits for it to be done.
func (r *Run) proposedAnew(s *Step) {
	for _, other := range r.Steps {
		if other == s {
			return
		}
		if other.StoppedBy == s.Name {
			other.StoppedBy, other.Unchecked = "", true
		}
	}
}
