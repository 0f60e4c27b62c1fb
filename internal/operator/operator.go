// Package operator answers the operator calls of contract §9. Every change is: read the record at the leader, ask the pure
// core, write by compare-and-set, and on a conflict read and ask again; the letter's message follows the record. No call
// acts on a message alone, and any number of reconcilers may answer side by side.
package operator

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/run"
)

// Streams is what the calls need of NATS beside the records. All methods are safe for concurrent use.
type Streams interface {
	port.Waker
	// FindJob finds the first job of the run that still is in any queue. port.ErrNotFound.
	FindJob(ctx context.Context, id run.ID) (engine.Message, error)
	// LastLetter is the sequence of the last letter there is of a tenant ("": of all), LastRun that of the last record; 0 if
	// there is none.
	LastLetter(ctx context.Context, tenant string) (uint64, error)
	LastRun(ctx context.Context, tenant string) (uint64, error)
}

// Config is what an operator service is made of. All fields are required.
type Config struct {
	Records  *record.Records
	Streams  Streams
	Queues   Queues
	Tools    run.Tools
	Defaults func() engine.Defaults
	Index    *Index
	Random   func() float64 // in [0, 1)
	Observe  record.Observer
	Log      *slog.Logger
}

// Operator answers operator calls. Safe for concurrent use.
type Operator struct{ Config }

// New makes an operator service.
func New(c Config) *Operator { return &Operator{c} }

// Limits of one call.
const (
	callTimeout = 10 * time.Second
	bulkTimeout = 55 * time.Second
	requestMax  = 1 << 20 // bytes
	replyMax    = 800_000 // bytes of a page, well within one message
	depthMax    = run.MaxArgsDepth + 8
)

// Unavailable is the code of a call whose record could not be read or written in time: it is not known whether anything
// has changed, and the same call may be made again.
const Unavailable = "UNAVAILABLE"

// Status is the number of a refusal in the micro service's error header.
func Status(code string) string {
	switch code {
	case run.BadRequest:
		return "400"
	case run.NotAllowed:
		return "403"
	case run.NotFound:
		return "404"
	case run.Conflict, run.Claimed:
		return "409"
	}
	return "503"
}

// Handle answers one call. refused is nil or says why the call was refused; the reply says so too.
func (o *Operator) Handle(ctx context.Context, c *Call, tenant string, data []byte) (reply []byte, refused *engine.Refusal) {
	limit := callTimeout
	if c.Bulk {
		limit = bulkTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := o.answer(ctx, c, tenant, data)
	if err == nil {
		reply, err = strictjson.Marshal(answer)
	}
	if err == nil {
		return o.Records.Redact(reply), nil
	}
	if !errors.As(err, &refused) {
		o.Log.Warn("operator call not answered", "call", c.Name(), "tenant", tenant, "error", err)
		refused = &engine.Refusal{Code: Unavailable, Message: "the record could not be read or written in time; make the same call again"}
		if errors.Is(err, engine.ErrNewer) {
			refused.Message = "the record was written by a newer version than the reconciler that answers; upgrade it, or make the same call again where another one answers"
		}
	}
	o.Observe.Refusal(refused.Code)
	reply, err = strictjson.Marshal(RefusalShape{Code: refused.Code, Message: refused.Message})
	if err != nil {
		panic("operator: " + err.Error()) // three plain values always encode
	}
	return reply, refused
}

func (o *Operator) answer(ctx context.Context, c *Call, tenant string, data []byte) (any, error) {
	switch {
	case tenant == port.AllTenants && !c.All:
		return nil, badRequest("%s needs a tenant, not %s", c.Name(), port.AllTenants)
	case tenant != port.AllTenants && tenant != port.InvalidTenant && !run.ValidID(tenant):
		return nil, badRequest("%s is no tenant", strconv.Quote(tenant))
	}
	request := c.Request()
	if err := decode(data, request); err != nil {
		return nil, err
	}
	return c.answer(o, ctx, tenant, request)
}

// load reads a run's record; there being none is a refusal.
func (o *Operator) load(ctx context.Context, id run.ID) (*record.Handle, error) {
	h, err := o.Records.Load(ctx, id)
	if errors.Is(err, port.ErrNotFound) {
		return nil, refuse(run.NotFound, "there is no run %s of tenant %s", id.Run, id.Tenant)
	}
	if errors.Is(err, engine.ErrBroken) {
		return nil, refuse(run.NotAllowed, "the record is left alone until somebody ends the run (runs discard): %v", err)
	}
	return h, err
}

// change reads a record, applies decide and writes what it made, until nobody was in between. decide reports whether the
// record changed. It is called again on each conflict, with the record as it is then.
func (o *Operator) change(ctx context.Context, id run.ID, decide func(h *record.Handle) (changed bool, err error)) (*record.Handle, error) {
	for attempt := 0; ; attempt++ {
		h, err := o.load(ctx, id)
		if err != nil {
			return nil, err
		}
		changed, err := decide(h)
		if err != nil {
			return nil, err
		}
		if !changed {
			return h, nil
		}
		err = o.Records.Save(ctx, h)
		if err == nil {
			o.Index.saved(h)
			return h, nil
		}
		if !errors.Is(err, port.ErrConflict) {
			return nil, err
		}
		if err := o.giveWay(ctx, attempt); err != nil {
			return nil, err
		}
	}
}

// giveWay lets whoever won go first: 1 to 20 ms with jitter. The error is that of ctx.
func (o *Operator) giveWay(ctx context.Context, attempt int) error {
	limit := min(time.Millisecond<<min(attempt, 5), 20*time.Millisecond)
	pause.For(ctx, time.Millisecond/2+time.Duration(o.Random()*float64(limit)))
	return ctx.Err()
}

// follow does what a change of the record asks for beside it: the letter's message, what is owed, a wake, a hint. The
// record is what counts: what fails here is done by the active reconciler. settled is the owner of a letter that was
// answered, "" for none.
func (o *Operator) follow(ctx context.Context, h *record.Handle, settled string) {
	r := h.Run
	err := o.image(ctx, h, settled)
	if err == nil && (len(r.Owed) > 0 || len(r.AlarmsOwed()) > 0) {
		err = o.Records.Publish(ctx, h)
	}
	if err == nil && r.End == nil && r.Lease == nil && len(r.Next(o.Records.Due()).Ready) > 0 {
		_, err = o.Streams.Wake(ctx, r.Queue, h.ID)
	}
	if err == nil && r.Lease != nil {
		err = o.Streams.Hint(r.Lease.Holder, h.ID)
	}
	if err != nil {
		o.Log.Warn("left to the active reconciler", "tenant", h.ID.Tenant, "run_id", h.ID.Run, "error", err)
	}
}

// image makes the letter's message what the record says: removed where it was answered, rewritten where it is open and
// changed. An open letter is read anew after it was written: if it was answered meanwhile its message must go.
func (o *Operator) image(ctx context.Context, h *record.Handle, settled string) error {
	if settled != "" {
		if err := o.Records.RemoveLetter(ctx, h.ID, settled); err != nil {
			return err
		}
	}
	r := h.Run
	if r.Letter == nil || !r.Letter.Open || settled != "" {
		return nil // a letter that a new episode opened is published with that episode's end
	}
	for {
		if err := o.Records.PublishLetter(ctx, h); err != nil {
			return err
		}
		fresh, err := o.Records.Load(ctx, h.ID)
		switch {
		case errors.Is(err, port.ErrNotFound):
			return o.Records.RemoveLetter(ctx, h.ID, r.Letter.Owner)
		case err != nil:
			return err
		case fresh.Seq == h.Seq:
			return nil
		case fresh.Run.Letter == nil || !fresh.Run.Letter.Open || fresh.Run.Letter.ID != r.Letter.ID:
			return o.Records.RemoveLetter(ctx, h.ID, r.Letter.Owner)
		case fresh.Run.Letter.Owner != r.Letter.Owner:
			if err := o.Records.RemoveLetter(ctx, h.ID, r.Letter.Owner); err != nil { // it was handed on meanwhile
				return err
			}
		}
		h, r = fresh, fresh.Run
	}
}
