package engine

import (
	"slices"

	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Sizes at which results leave the record (architecture: the record holds what is needed to go on).
const (
	openResultMax  = 4 << 10   // in an open run a published result above this is replaced by its sequence
	recordSoftMax  = 256 << 10 // above this every published result is, oldest first
	recordHeadroom = 16 << 10  // kept free for what an end needs
)

// LimitMessages says how many bytes one message may have at the server, as Defaults.MessageMax. It is not part of the
// record: whoever has read one says it, because the server may be another one by now.
func (r *Run) LimitMessages(most int) { r.messageMax = most }

// recordMax is how many bytes the record may have: as the contract says, or as the server takes, whichever is less.
func (r *Run) recordMax() int { return within(MaxRecordBytes, r.messageMax) }

// softMax is above which size published results leave the record.
func (r *Run) softMax() int { return within(recordSoftMax, r.messageMax/3) }

// rawMax is how much of a job that could not be read is kept: it is in the record, and in the letter, in base64.
func (r *Run) rawMax() int { return within(deadletter.MaxRawBytes, r.messageMax/4) }

// within is the contract's limit or the server's, whichever is less; 0 is none.
func within(contract, server int) int {
	if server > 0 {
		return min(contract, server)
	}
	return contract
}

// fits reports whether n more bytes may still come into the record.
func (r *Run) fits(n int) bool { return r.size+n+recordHeadroom <= r.recordMax() }

// trim drops what nothing needs any more, before the record is written: an ended run's args and results that no owed
// outcome needs (digests of proposals stay), and an open run's large results once they can be read back from AGENTRUN_RESULTS.
func (r *Run) trim() {
	if r.End != nil && (r.End.Outcome == envelope.OK || r.End.Outcome == envelope.Cancelled) {
		for _, s := range r.Steps {
			s.Args, s.Asked = nil, nil
			if r.End.Outcome == envelope.OK {
				s.forget()
			}
			if !r.owes(s) {
				s.Result = nil
			}
		}
		return
	}
	if r.End != nil && r.Letter != nil && r.Letter.Open {
		r.takeBack()
	}
	if r.More && r.End == nil {
		r.detach(openResultMax, 0)
	}
}

// WantsBack lists the results that were given to AGENTRUN_RESULTS and that a step of this ended run still names: step name
// to the sequence of its ok outcome. The stream forgets before a letter does, so the driver reads them back (Fetched) and
// writes the record once more, which then keeps them.
func (r *Run) WantsBack() map[string]uint64 {
	if r.End == nil || r.Letter == nil || !r.Letter.Open {
		return nil
	}
	var out map[string]uint64
	for _, s := range r.Steps {
		if s.State == run.OK || s.forgiven() {
			continue
		}
		for name, seq := range r.Fetch(s.Name) {
			if out == nil {
				out = map[string]uint64{}
			}
			out[name] = seq
		}
	}
	return out
}

// takeBack keeps what was read back for an ended run, as far as it fits. It is not given to the stream again.
func (r *Run) takeBack() {
	for _, s := range r.Steps {
		result := r.fetched[s.Name]
		if s.State == run.OK && len(s.Result) == 0 && s.ResultRef == nil && len(result) > 0 && r.size+len(result) <= r.softMax() {
			s.Result, s.OutcomeSeq = result, 0
			r.size += len(result)
		}
	}
}

// forget drops what only a further dispatch of the step would need. A run that is ok has none: it has no letter that could
// reopen it. The digest of what was proposed stays for a repeated job, the dispatch for late evidence.
func (s *Step) forget() {
	s.Key, s.SentArgs, s.FirstSent = "", "", 0
	s.Used, s.Failures, s.Losses, s.Proposals = 0, 0, 0, 0
	s.Approved, s.AskedSum = "", ""
}

// owes reports whether an unpublished outcome refers to the step's result.
func (r *Run) owes(s *Step) bool {
	return slices.ContainsFunc(r.Owed, func(o Owed) bool {
		return o.Scope == envelope.StepScope && o.Step == s.Name && o.Outcome == envelope.OK
	})
}

// detach replaces published results above min by their sequence, oldest first, until the record has lost want bytes.
func (r *Run) detach(minimum, want int) {
	for _, s := range r.Steps {
		if s.State != run.OK || s.OutcomeSeq == 0 || len(s.Result) <= minimum || r.owes(s) {
			continue
		}
		want -= len(s.Result)
		r.size -= len(s.Result)
		s.Result = nil
		if want <= 0 && minimum == 0 {
			return
		}
	}
}
