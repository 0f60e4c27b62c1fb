package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Config is what a gateway is made of.
type Config struct {
	Client *client.Client
	Tools  func() *connector.Registry // as they stand; another pointer is another list
	Queue  string                     // "": client.DefaultQueue
	Flow   string                     // the workflow of its runs, at most 64 bytes; "": mcp
	Owner  string                     // of its runs' letters; "": the config's default
	Within time.Duration              // how long a call is waited for before its caller is told that it is not known yet
	Log    *slog.Logger
	Now    func() time.Time
}

// Gateway makes calls. Safe for concurrent use.
type Gateway struct {
	Config
	stopping context.Context
	stop     context.CancelFunc

	mu      sync.Mutex
	hints   map[string]int     // the number that was used last, by line and day: where to look first, and no more than that
	servers map[*Caller]served // what each caller is shown
}

// New makes a gateway. Stop it before the connection is closed.
func New(c Config) *Gateway {
	g := &Gateway{Config: c, hints: map[string]int{}, servers: map[*Caller]served{}}
	g.stopping, g.stop = context.WithCancel(context.Background())
	return g
}

// Stop answers the calls that are waited for: not known yet. What they began goes on.
func (g *Gateway) Stop() { g.stop() }

const (
	askWithin = 2 * time.Second // what an operator knows of a run
	hintsMax  = 10_000
	// newDay is for how long after midnight a call without a key may be one that was begun before it.
	newDay = time.Hour
)

// Call makes one call and waits for its end, at most Within. told hears of each outcome on the way; it may be nil.
func (g *Gateway) Call(ctx context.Context, tool *connector.Tool, c *Call, told func(*client.Outcome)) *Answer {
	if !strings.Contains(string(c.Args.Text()), `"$from"`) && tool.Fits != nil {
		if field, fits := tool.Fits(c.Args); !fits {
			return Unfit(field)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, g.Within)
	defer cancel()
	defer context.AfterFunc(g.stopping, cancel)()
	w := &waiting{g: g, call: c, schema: advertised(tool.Listing.OutputSchema) != nil, told: told}
	switch {
	case c.Key != "":
		a, _ := w.at(ctx, c.Keyed())
		return a
	case tool.Listing.Alone:
		a, _ := w.at(ctx, c.Alone(strings.ToLower(rand.Text())))
		return a
	}
	return w.joining(ctx)
}

// waiting is one call that is waited for.
type waiting struct {
	g      *Gateway
	call   *Call
	schema bool // the tool promises what its result looks like
	told   func(*client.Outcome)
}

// joining makes a call without a key: the first of its number that is not settled.
func (w *waiting) joining(ctx context.Context) *Answer {
	day := w.g.Now().UTC()
	n := w.g.hint(w.call, day)
	if n == 0 {
		n = 1
		if since := day.Sub(day.Truncate(24 * time.Hour)); w.call.Run == "" && since < newDay {
			if at, ok, err := w.stillFromYesterday(ctx, day.Add(-24*time.Hour)); err != nil {
				return NotTaken("it cannot be told now whether the same call of a moment ago is done")
			} else if ok {
				a, _ := w.at(ctx, at)
				return a
			}
		}
	}
	for {
		a, settled := w.at(ctx, w.call.Nth(day, n))
		if !settled {
			w.g.hinted(w.call, day, n)
			return a
		}
		next, err := w.unsettled(ctx, day, n)
		if err != nil {
			return NotTaken("what became of the same call before cannot be read now")
		}
		n = next
	}
}

// unsettled is the first number above n that is not settled. All below it are.
func (w *waiting) unsettled(ctx context.Context, day time.Time, n int) (int, error) {
	step, known := 1, (*client.Result)(nil)
	settled := func(n int) (bool, error) {
		at := w.call.Nth(day, n)
		if known == nil || w.call.Run == "" { // all numbers of a named run are in one place
			var err error
			if known, err = w.g.Client.Look(ctx, w.call.Caller.Tenant, at.Run); err != nil {
				return false, err
			}
		}
		return Settled(known.Steps[at.Step], known.Run), nil
	}
	low, high := n, 0
	for high == 0 {
		is, err := settled(low + step)
		switch {
		case err != nil:
			return 0, err
		case is:
			low, step = low+step, step*2
		default:
			high = low + step
		}
	}
	for high-low > 1 {
		middle := (low + high) / 2
		is, err := settled(middle)
		switch {
		case err != nil:
			return 0, err
		case is:
			low = middle
		default:
			high = middle
		}
	}
	return high, nil
}

// stillFromYesterday finds the same call where it was begun before midnight and is not settled.
func (w *waiting) stillFromYesterday(ctx context.Context, day time.Time) (Place, bool, error) {
	n, err := w.unsettled(ctx, day, 0)
	if err != nil {
		return Place{}, false, err
	}
	at := w.call.Nth(day, n)
	v, err := w.g.Client.GetRun(ctx, w.call.Caller.Tenant, at.Run)
	if errors.Is(err, client.ErrNotFound) {
		return Place{}, false, nil
	}
	if err != nil {
		return Place{}, false, err
	}
	return at, v.Outcome == "" || v.Outcome == envelope.NeedsHuman, nil
}

// at makes the call at its place and waits for it. settled says that it had its last word before, so that nothing was
// published: a call without a key is another one then.
func (w *waiting) at(ctx context.Context, at Place) (_ *Answer, settled bool) {
	c, tenant := w.call, w.call.Caller.Tenant
	p, err := client.Prepare(c.Job(at, w.g.Flow, w.g.Owner))
	if err != nil {
		return Refuse(&Problem{Text: err.Error()}), false
	}
	var published, known bool
	var last *client.Outcome
	o := client.Options{
		Queue: w.g.Queue, Traceparent: c.Trace,
		Enough:      func(r *client.Result) bool { known = w.answers(at, r); return known },
		OnPublished: func(*client.Receipt) { published = true },
		OnOutcome: func(s *client.Outcome) {
			if s.Step == at.Step {
				last = s
			}
			if w.told != nil {
				w.told(s)
			}
		},
	}
	r, err := w.g.Client.PublishAndWait(ctx, p, o)
	if err == nil && !known && w.another(at, r) {
		// The refusal is of another's call, with this key and other args: ours goes on.
		r, err = w.g.Client.Wait(ctx, tenant, at.Run)
	}
	switch {
	case err == nil:
	case published:
		return w.g.pending(context.WithoutCancel(ctx), c.Caller, at, last), false
	case errors.Is(err, client.ErrQueueFull), errors.Is(err, client.ErrNoStreams), errors.Is(err, client.ErrNotAllowed):
		w.g.Log.Error("a job is not taken", "operation", at.Ref(), "tenant", tenant, "error", err)
		return NotTaken("no executor can take it now"), false
	default:
		return Unsubmitted(at, c.Key != "", "the message system does not answer in time"), false
	}
	step := r.Steps[at.Step]
	for _, s := range []*client.Outcome{step, r.Run, r.Refused} {
		if s != nil && !c.Same(s.Workflow) {
			return KeyTaken(at), false
		}
	}
	if known && c.Key == "" && (Settled(step, r.Run) || w.g.closed(ctx, tenant, at.Run)) {
		return nil, true
	}
	if refusal(step) && step.Envelope.Code == envelope.CodeStepConflict {
		return KeyTaken(at), false
	}
	for _, s := range []*client.Outcome{step, r.Run, r.Refused} {
		if s != nil {
			return w.g.whole(ctx, at, s, r.Run, w.schema), false
		}
	}
	return Pending(at, "", nil), false
}

// answers says whether what is known of a place is the call's answer, or shows that the place is another call's.
func (w *waiting) answers(at Place, known *client.Result) bool {
	step := known.Steps[at.Step]
	for _, s := range []*client.Outcome{step, known.Run} {
		if s != nil && !w.call.Same(s.Workflow) {
			return true
		}
	}
	return step != nil && step.Terminal && (known.Run != nil || w.call.Run != "")
}

// another: the job was refused although its run is of this call: somebody else used the key with other args meanwhile.
func (w *waiting) another(at Place, r *client.Result) bool {
	s := r.Steps[at.Step]
	if r.Refused != nil {
		s = r.Refused
	}
	return w.call.Run == "" && refusal(s) && w.call.Same(s.Workflow) && s.Envelope.Code != envelope.CodeJobInvalid
}

// closed reports whether a person has settled what waited for one. Where that cannot be learnt it still waits.
func (g *Gateway) closed(ctx context.Context, tenant, runID string) bool {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	_, err := g.Client.Get(ctx, tenant, runID)
	return errors.Is(err, client.ErrNotFound)
}

// whole is Of with a large result fetched from where it lies.
func (g *Gateway) whole(ctx context.Context, at Place, step, end *client.Outcome, schema bool) *Answer {
	if e := step.Envelope; e != nil && e.ResultRef != nil {
		data, err := g.Client.Fetch(ctx, e.ResultRef)
		if err != nil {
			g.Log.Warn("a large result cannot be fetched", "operation", at.Ref(), "error", err)
		} else {
			with, fetched := *step, *e
			fetched.Result, fetched.ResultRef = data, nil
			with.Envelope, step = &fetched, &with
		}
	}
	return Of(at, step, end, schema)
}

// pending says what is known of an operation whose end is not.
func (g *Gateway) pending(ctx context.Context, who *Caller, at Place, last *client.Outcome) *Answer {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	v, err := g.Client.GetRun(ctx, who.Tenant, at.Run)
	switch {
	case err != nil || v.Actor != who.Actor || last != nil:
		return Pending(at, "", last)
	case v.Outcome != "":
		return Forgotten(at, v)
	}
	return Pending(at, stateOf(v, at.Step), nil)
}

func stateOf(v *run.View, step string) string {
	for i := range v.Steps {
		if v.Steps[i].Step == step {
			return string(v.Steps[i].State)
		}
	}
	return v.State
}

// lookWithin is how long agentrun_status waits for what is known already to be read.
const lookWithin = 3 * time.Second

// Status says what became of an operation of this caller's, and waits for its end for at most so long. Others' operations
// are not told from those that never were.
func (g *Gateway) Status(ctx context.Context, who *Caller, operation string, wait time.Duration) *Answer {
	at, ok := ParseRef(who.Tenant, operation)
	if !ok {
		return Refuse(&Problem{"/operation", "operation is no name of one: give it as an answer told it"})
	}
	ctx, cancel := context.WithTimeout(ctx, max(lookWithin, min(wait, g.Within)))
	defer cancel()
	defer context.AfterFunc(g.stopping, cancel)()
	known, err := g.Client.Look(ctx, who.Tenant, at.Run)
	if err != nil {
		return Pending(at, "", nil)
	}
	step := known.Steps[at.Step]
	if !ended(at, step, known.Run) && wait > 0 && (step == nil || step.Actor == who.Actor) {
		var steps []string
		if at.Step != stepOfARun {
			steps = append(steps, at.Step)
		}
		if r, err := g.Client.Wait(ctx, who.Tenant, at.Run, steps...); err == nil {
			known, step = r, r.Steps[at.Step]
		}
	}
	switch {
	case step != nil && step.Actor != who.Actor, step == nil && known.Run != nil && known.Run.Actor != who.Actor:
		return Unheard(at)
	case ended(at, step, known.Run):
		return g.whole(ctx, at, step, known.Run, false)
	case step != nil:
		return Pending(at, "", step)
	case known.Run != nil:
		return Of(at, known.Run, known.Run, false)
	}
	short, stop := context.WithTimeout(context.WithoutCancel(ctx), askWithin)
	defer stop()
	v, err := g.Client.GetRun(short, who.Tenant, at.Run)
	switch {
	case err != nil || v.Actor != who.Actor:
		return Unheard(at)
	case v.Outcome != "":
		return Forgotten(at, v)
	}
	return Pending(at, stateOf(v, at.Step), nil)
}

// ended: the step has its last word, and so has the run, where it is the step's own: a person's answer begins it again.
func ended(at Place, step, end *client.Outcome) bool {
	return step != nil && step.Terminal && !refusal(step) && (end != nil || at.Step != stepOfARun)
}

func hintOf(c *Call, day time.Time) string { return c.Nth(day, 0).Ref() }

func (g *Gateway) hint(c *Call, day time.Time) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hints[hintOf(c, day)]
}

func (g *Gateway) hinted(c *Call, day time.Time, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.hints) >= hintsMax {
		clear(g.hints)
	}
	g.hints[hintOf(c, day)] = n
}
