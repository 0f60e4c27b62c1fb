package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Result is what a wait was for.
type Result struct {
	// Outcome is ok, fatal, needs_human or cancelled: the run's, or the worst of the steps that were waited for.
	Outcome envelope.Word
	// Run is the run's terminal outcome; nil where steps are the answer, or where the job was refused.
	Run *Outcome
	// Steps has the latest outcome of each step that was seen.
	Steps map[string]*Outcome
	// Refused is the outcome that refused the job as a whole (JOB_INVALID, RUN_CLOSED); nil if it was taken.
	Refused *Outcome
	// Repeated: nothing came after the job, because it only repeated what was known. The answer was in the stream.
	Repeated bool
}

// A job that repeats what is known already causes no outcome: if the stored ones say how it ended and nothing new comes
// for this long, they are the answer.
const quiet = 2 * time.Second

var errQuiet = errors.New("nothing came")

// SubmitAndWait publishes the job and waits for what becomes of it: the run's end, or, for a job with More, the ends of its
// own steps. It watches before it publishes, so that nothing is missed, and survives reconnects. Called again with the same
// job, by this process or another, it gets the same answer: two seconds later, if the job only repeats what has ended.
//
// An error means that the answer is not known; the run goes on without the caller. Errors: those of Submit and Watch, and
// the reason why ctx ended. There is no other limit: give ctx a deadline.
func (c *Client) SubmitAndWait(ctx context.Context, job *run.Job, o Options) (*Result, error) {
	p, err := Prepare(job)
	if err != nil {
		return nil, err
	}
	return c.PublishAndWait(ctx, p, o)
}

// PublishAndWait is SubmitAndWait for a job that is prepared.
func (c *Client) PublishAndWait(ctx context.Context, p *Prepared, o Options) (*Result, error) {
	w, err := c.Watch(ctx, p.id.Tenant, p.id.Run)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	f := newFollower(p.more, p.steps)
	if err := f.catchUp(ctx, w); err != nil {
		return nil, err
	}
	if known := f.known(); o.Enough != nil && o.Enough(known) {
		return known, nil
	}
	receipt, err := c.Publish(ctx, p, o)
	if err != nil {
		return nil, err
	}
	if o.OnPublished != nil {
		o.OnPublished(receipt)
	}
	show := o.OnOutcome
	if show == nil {
		show = func(*Outcome) {}
	}
	for {
		if r, certain := f.answer(); r != nil && certain {
			return r, nil
		}
		s, err := nextWithin(ctx, w, quiet)
		if errors.Is(err, errQuiet) {
			if r, _ := f.answer(); r != nil {
				r.Repeated = true
				f.restsOn(show)
				return r, nil
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		f.add(s)
		show(s)
	}
}

// Look returns what the stream has of a run now, without waiting for more: the latest outcome of each step, and the run's end
// if it has one; Outcome is empty. A run of which nothing is known has neither. Errors: those of Watch.
func (c *Client) Look(ctx context.Context, tenant, runID string) (*Result, error) {
	w, err := c.Watch(ctx, tenant, runID)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	f := newFollower(false, nil)
	if err := f.catchUp(ctx, w); err != nil {
		return nil, err
	}
	return f.known(), nil
}

// catchUp reads what was in the stream when the watch began.
func (f *follower) catchUp(ctx context.Context, w *Watch) error {
	for !w.caughtUp() {
		s, err := nextWithin(ctx, w, quiet)
		if errors.Is(err, errQuiet) {
			continue
		}
		if err != nil {
			return err
		}
		f.add(s)
	}
	return nil
}

func (f *follower) known() *Result { return &Result{Run: f.end, Steps: f.steps, Repeated: true} }

// nextWithin is Next with errQuiet after a time.
func nextWithin(ctx context.Context, w *Watch, d time.Duration) (*Outcome, error) {
	short, cancel := context.WithTimeoutCause(ctx, d, errQuiet)
	defer cancel()
	s, err := w.Next(short)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return s, err
}

// Fetch reads a result that lies in the object store, by the ResultRef of its envelope. The NATS user needs the rights of
// contract §2's object store. The error says that it could not be read, or is not what the outcome named.
func (c *Client) Fetch(ctx context.Context, ref *envelope.ObjectRef) (json.RawMessage, error) {
	store, err := c.js.ObjectStore(ctx, ref.Bucket)
	if err != nil {
		return nil, fmt.Errorf("the object store %s: %w", ref.Bucket, err)
	}
	data, err := store.GetBytes(ctx, ref.Object)
	if err != nil {
		return nil, fmt.Errorf("the object %s of %s: %w", ref.Object, ref.Bucket, err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != ref.SHA256 {
		return nil, fmt.Errorf("the object %s of %s is not what the outcome named", ref.Object, ref.Bucket)
	}
	return data, nil
}

// Wait waits for a run that was submitted before, by anyone: for its terminal outcome, which may be in the stream already,
// or, where steps are named, until each of them has ended or the run has (what a job with More waits for). A run that
// was opened again by an operator after an end is waited for anew, once an outcome shows it.
//
// An end that is more than seven days old is not in the stream any more; GetRun has it for as long as the run is
// remembered. A run that nobody submitted is waited for until ctx ends. Errors: those of Watch.
func (c *Client) Wait(ctx context.Context, tenant, runID string, steps ...string) (*Result, error) {
	return c.wait(ctx, tenant, runID, 1, steps)
}

// WaitEpisode is Wait for the end of an episode or a later one: what Replay, Resolve and Approve began.
func (c *Client) WaitEpisode(ctx context.Context, tenant, runID string, episode int) (*Result, error) {
	return c.wait(ctx, tenant, runID, episode, nil)
}

func (c *Client) wait(ctx context.Context, tenant, runID string, episode int, steps []string) (*Result, error) {
	w, err := c.Watch(ctx, tenant, runID)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	for _, s := range steps {
		if !run.ValidID(s) {
			return nil, fmt.Errorf("the step %q is no identifier", s)
		}
	}
	f := newFollower(len(steps) > 0, steps)
	f.asked, f.episode = true, episode
	for {
		if w.caughtUp() {
			if r, _ := f.answer(); r != nil {
				return r, nil
			}
		}
		s, err := nextWithin(ctx, w, quiet) // what is known may be the answer, once it is known to be all
		if errors.Is(err, errQuiet) {
			continue
		}
		if err != nil {
			return nil, err
		}
		f.add(s)
	}
}

// follower gathers the outcomes of one run and says when the job has its answer.
type follower struct {
	more    bool
	asked   bool     // no job was published: what is stored counts as it is
	episode int      // ends of earlier ones are none
	names   []string // of the job's steps
	steps   map[string]*Outcome
	end     *Outcome // the run's end, unless a later outcome shows that the run goes on
	refused *Outcome // the job as a whole was refused
}

func newFollower(more bool, steps []string) *follower {
	return &follower{more: more, names: steps, steps: map[string]*Outcome{}}
}

func (f *follower) add(s *Outcome) {
	switch {
	case s.Scope == envelope.RunScope:
		if s.N >= f.episode {
			f.end = s
		}
	case refusesJob(s):
		if !s.Stored && !f.asked && (s.Step == "" || slices.Contains(f.names, s.Step)) {
			f.refused = s
		}
	case refusal(s) && (s.Stored || f.asked):
		// It told another job's caller something, and changed nothing of the step.
	default:
		f.steps[s.Step] = s
		if f.end != nil && f.end.Stored && !refusal(s) {
			f.end = nil // the run was opened again after that end
		}
	}
}

// refusesJob: the job could not be accepted at all, or its run has ended.
func refusesJob(s *Outcome) bool {
	return s.Step == "" || s.Envelope != nil && s.Envelope.Code == envelope.CodeRunClosed
}

func refusal(s *Outcome) bool {
	if s.Envelope == nil {
		return false
	}
	switch s.Envelope.Code {
	case envelope.CodeStepConflict, envelope.CodeIdenticalRetry, envelope.CodeRunClosed:
		return true
	}
	return false
}

// answer is what the job came to, nil if that is not known, and whether it is certain (from outcomes that came after the
// job) or only likely so far.
func (f *follower) answer() (r *Result, certain bool) {
	switch {
	case f.refused != nil:
		return &Result{Outcome: f.refused.Outcome.Outcome, Steps: f.steps, Refused: f.refused}, true
	case f.end != nil:
		return &Result{Outcome: f.end.Outcome.Outcome, Run: f.end, Steps: f.steps}, !f.end.Stored
	case len(f.names) == 0 && f.more:
		return &Result{Outcome: envelope.OK, Steps: f.steps}, false
	case len(f.names) == 0:
		return nil, false
	}
	certain, refused := true, 0
	worst := envelope.OK
	for _, name := range f.names {
		s := f.steps[name]
		if s == nil || !s.Terminal || s.Stored && !f.asked && amendable(s) {
			return nil, false
		}
		certain = certain && !s.Stored
		if !s.Stored && refusal(s) {
			refused++
		}
		if rank[s.Outcome.Outcome] > rank[worst] {
			worst = s.Outcome.Outcome
		}
	}
	// Without more the run's own end follows, unless nothing of the job was taken up.
	if !f.more && refused < len(f.names) {
		return nil, false
	}
	return &Result{Outcome: worst, Steps: f.steps}, certain
}

// amendable: whatever args a job brings for this step, it is answered by an outcome of its own.
func amendable(s *Outcome) bool {
	e := s.Envelope
	return e != nil && !e.OK && e.Retry != nil && e.Retry.Directive == envelope.AfterInputFix && e.Retry.MaxAttemptsRemaining > 0
}

var rank = map[envelope.Word]int{envelope.Cancelled: 1, envelope.Fatal: 2, envelope.NeedsHuman: 3}

// restsOn shows the stored outcomes that are the answer.
func (f *follower) restsOn(show func(*Outcome)) {
	if f.end != nil {
		if f.end.Stored {
			show(f.end)
		}
		return
	}
	for _, name := range f.names {
		if s := f.steps[name]; s != nil && s.Stored {
			show(s)
		}
	}
}
