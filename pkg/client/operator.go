package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// AllTenants stands for every tenant in List, Claim and ListRuns, for those whose NATS user may ask for it.
const AllTenants = port.AllTenants

// OpError is a refusal of an operator call. errors.Is finds the sentinel of its code: ErrBadRequest, ErrNotAllowed,
// ErrNotFound, ErrConflict, ErrClaimed, ErrUnavailable.
type OpError struct {
	Call    string // e.g. deadletters.replay
	Tenant  string
	Code    string // BAD_REQUEST, NOT_ALLOWED, NOT_FOUND, CONFLICT, CLAIMED or UNAVAILABLE
	Message string // for people; it may change
}

func (e *OpError) Error() string {
	return fmt.Sprintf("%s of %s: %s: %s", e.Call, e.Tenant, e.Code, e.Message)
}

var byCode = map[string]error{
	run.BadRequest: ErrBadRequest, run.NotAllowed: ErrNotAllowed, run.NotFound: ErrNotFound, run.Conflict: ErrConflict,
	run.Claimed: ErrClaimed, "UNAVAILABLE": ErrUnavailable,
}

// Is matches the sentinel of the refusal's code.
func (e *OpError) Is(target error) bool { return target != nil && byCode[e.Code] == target }

// How long a call may take, where ctx has no deadline: a little longer than the reconciler takes at most.
const (
	callWithin = 15 * time.Second
	bulkWithin = 60 * time.Second
)

// Call makes any operator call of the contract by its name, e.g. deadletters.list: for a call, or members of one, that this
// package does not know. request is encoded as JSON. The reply is decoded into reply, which may be nil; a *json.RawMessage
// takes it as it came. Without a deadline of ctx it takes at most 15 s. Errors: as of the other calls.
func (c *Client) Call(ctx context.Context, name, tenant string, request, reply any) error {
	return c.call(ctx, name, tenant, callWithin, request, reply)
}

// call makes one operator call. Errors: *OpError, ErrNoReconciler, ErrNotAllowed, and what ended the wait for the reply: it
// is not known then whether the call was carried out, and the same call may be made again.
func (c *Client) call(ctx context.Context, name, tenant string, within time.Duration, request, reply any) error {
	if tenant != AllTenants && !run.ValidID(tenant) && tenant != port.InvalidTenant {
		return &OpError{Call: name, Tenant: tenant, Code: run.BadRequest, Message: "this is no tenant"}
	}
	data, err := strictjson.Marshal(request) // args keep the text that they were given with
	if err != nil {
		return &OpError{Call: name, Tenant: tenant, Code: run.BadRequest, Message: "the request cannot be encoded: " + err.Error()}
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	subject := topology.OpSubject(name, tenant)
	ctx, stop := c.unlessDenied(ctx, subject, c.inboxes())
	defer stop()
	msg, err := c.nc.RequestWithContext(ctx, subject, data)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%s of %s: %w", name, tenant, ErrNoReconciler)
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%s of %s: %w", name, tenant, context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("%s of %s: %w", name, tenant, err)
	}
	var refusal struct {
		OK      bool   `json:"ok"`
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	if err = json.Unmarshal(msg.Data, &refusal); err == nil && !refusal.OK {
		return &OpError{Call: name, Tenant: tenant, Code: refusal.Code, Message: refusal.Message}
	}
	if err == nil && reply != nil {
		err = json.Unmarshal(msg.Data, reply)
	}
	if err != nil {
		return fmt.Errorf("the reply to %s of %s cannot be read: %w", name, tenant, err)
	}
	return nil
}

// Filter chooses dead letters; an empty field chooses all.
type Filter struct {
	Owner      string        `json:"owner,omitempty"`
	ReasonCode string        `json:"reason_code,omitempty"`
	Tool       string        `json:"tool,omitempty"`
	Before     envelope.Time `json:"before,omitempty"` // created before this time
}

// ListRequest asks for a page of open dead letters.
type ListRequest struct {
	Filter
	Limit int    `json:"limit,omitempty"` // 0: 100
	After string `json:"after,omitempty"` // of the page before; opaque
}

// LetterPage is a page of dead letters, oldest first. After is empty on the last page.
type LetterPage struct {
	DeadLetters []deadletter.Summary `json:"deadletters"`
	Total       int                  `json:"total"` // all that the filter chooses
	After       string               `json:"after"`
}

// List returns a page of a tenant's open dead letters. A page ends early where the reply would become too large.
func (c *Client) List(ctx context.Context, tenant string, q ListRequest) (*LetterPage, error) {
	page := new(LetterPage)
	if err := c.call(ctx, "deadletters.list", tenant, callWithin, q, page); err != nil {
		return nil, err
	}
	return page, nil
}

// Letters goes through all pages of List. After an error the sequence ends.
func (c *Client) Letters(ctx context.Context, tenant string, f Filter) iter.Seq2[*deadletter.Summary, error] {
	return func(yield func(*deadletter.Summary, error) bool) {
		for q := (ListRequest{Filter: f}); ; {
			page, err := c.List(ctx, tenant, q)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page.DeadLetters {
				if !yield(&page.DeadLetters[i], nil) {
					return
				}
			}
			if q.After = page.After; q.After == "" {
				return
			}
		}
	}
}

type letterReply struct {
	DeadLetter *deadletter.Letter `json:"deadletter"`
}

// Get returns a run's open dead letter, whole. ErrNotFound: it has none.
func (c *Client) Get(ctx context.Context, tenant, runID string) (*deadletter.Letter, error) {
	var r letterReply
	if err := c.call(ctx, "deadletters.get", tenant, callWithin, map[string]string{"run_id": runID}, &r); err != nil {
		return nil, err
	}
	return r.DeadLetter, nil
}

// ClaimRequest asks for a letter to work on.
type ClaimRequest struct {
	Owner string        // "": any
	By    string        // who claims; the claim is this name's
	For   time.Duration // 0: five minutes
}

// Claim claims the oldest dead letter that nobody has claimed, for a time in which calls by others are ErrClaimed. It
// returns nil when there is none. The claim ends by itself, or with the letter.
func (c *Client) Claim(ctx context.Context, tenant string, q ClaimRequest) (*deadletter.Letter, error) {
	request := map[string]any{"by": q.By}
	if q.Owner != "" {
		request["owner"] = q.Owner
	}
	if q.For != 0 {
		request["for_seconds"] = q.For.Seconds()
	}
	var r letterReply
	if err := c.call(ctx, "deadletters.claim", tenant, callWithin, request, &r); err != nil {
		return nil, err
	}
	return r.DeadLetter, nil
}

// Episode is the part of a run's life that a settled letter began.
type Episode struct {
	RunID   string `json:"run_id"`
	Episode int    `json:"episode"`
}

// ReplayRequest asks to go on after the last proven step.
type ReplayRequest struct {
	RunID     string          `json:"run_id"`
	By        string          `json:"by"`
	Reason    string          `json:"reason"`
	Letter    string          `json:"letter,omitempty"`     // the id of the letter that was looked at; another one is ErrConflict
	Args      json.RawMessage `json:"args,omitempty"`       // other args for the failed step
	AddBudget *budget.Request `json:"add_budget,omitempty"` // on top of what is left
}

// Replay goes on with a run after its last proven step; steps that are done stay done. The same call again gets the first
// answer. ErrNotAllowed: the letter does not offer it, see deadletter.Summary.AllowedActions.
func (c *Client) Replay(ctx context.Context, tenant string, q ReplayRequest) (*Episode, error) {
	return c.settle(ctx, "deadletters.replay", tenant, q)
}

// ResolveRequest says what a person established about an unknown write.
type ResolveRequest struct {
	RunID       string               `json:"run_id"`
	Letter      string               `json:"letter"`         // required: what was decided was decided about this letter
	Step        string               `json:"step,omitempty"` // "": the only open step
	By          string               `json:"by"`
	Reason      string               `json:"reason"`
	CommitState envelope.CommitState `json:"commit_state"` // committed or not_committed
	Result      json.RawMessage      `json:"result,omitempty"`
	EvidenceRef string               `json:"evidence_ref,omitempty"` // at most 1 KiB
}

// Resolve records what became of a write, and the run goes on.
func (c *Client) Resolve(ctx context.Context, tenant string, q ResolveRequest) (*Episode, error) {
	return c.settle(ctx, "deadletters.resolve", tenant, q)
}

// ApproveRequest allows the args that a letter shows.
type ApproveRequest struct {
	RunID  string `json:"run_id"`
	Letter string `json:"letter"`
	Step   string `json:"step,omitempty"`
	By     string `json:"by"`
	Reason string `json:"reason"`
}

// Approve allows exactly the args that were refused for want of an approval, and the run goes on.
func (c *Client) Approve(ctx context.Context, tenant string, q ApproveRequest) (*Episode, error) {
	return c.settle(ctx, "deadletters.approve", tenant, q)
}

func (c *Client) settle(ctx context.Context, name, tenant string, request any) (*Episode, error) {
	e := new(Episode)
	if err := c.call(ctx, name, tenant, callWithin, request, e); err != nil {
		return nil, err
	}
	return e, nil
}

// DiscardRequest settles a letter without doing anything about its run.
type DiscardRequest struct {
	RunID  string `json:"run_id"`
	By     string `json:"by"`
	Reason string `json:"reason"`
	Letter string `json:"letter,omitempty"`
}

// Discard settles a dead letter; its run keeps its end.
func (c *Client) Discard(ctx context.Context, tenant string, q DiscardRequest) error {
	return c.call(ctx, "deadletters.discard", tenant, callWithin, q, nil)
}

// AssignRequest hands a dead letter to another owner.
type AssignRequest struct {
	RunID  string `json:"run_id"`
	To     string `json:"to"` // the new owner, an identifier
	By     string `json:"by"`
	Reason string `json:"reason"`
	Letter string `json:"letter,omitempty"` // the id of the letter that was looked at; another one is ErrConflict
}

// Assign hands a run's open dead letter to another owner, whom an alert tells. A claim on it ends. The letter of a later
// episode is again its tool's or job's owner's. The same call again changes nothing.
func (c *Client) Assign(ctx context.Context, tenant string, q AssignRequest) error {
	return c.call(ctx, "deadletters.assign", tenant, callWithin, q, nil)
}

// BulkRequest is one call about many letters.
type BulkRequest struct {
	Filter    Filter          `json:"filter"`
	Limit     int             `json:"limit,omitempty"` // 0: 100; at most 1000
	By        string          `json:"by"`
	Reason    string          `json:"reason"`
	AddBudget *budget.Request `json:"add_budget,omitempty"` // for ReplayMany only
	To        string          `json:"to,omitempty"`         // the new owner, for AssignMany only
}

// BulkResult is what a call in bulk came to for one letter; Code is "" on success, else as in OpError.
type BulkResult struct {
	Tenant  string `json:"tenant"`
	RunID   string `json:"run_id"`
	OK      bool   `json:"ok"`
	Episode int    `json:"episode"`
	Code    string `json:"code"`
}

// BulkReply has a result for each letter that was tried, and how many the filter still chooses.
type BulkReply struct {
	Results []BulkResult `json:"results"`
	Left    int          `json:"left"`
}

// ReplayMany replays the letters that a filter chooses, oldest first, each by itself: some may be refused. Interrupted, each
// letter is open or settled once, and the same call goes on with the rest.
func (c *Client) ReplayMany(ctx context.Context, tenant string, q BulkRequest) (*BulkReply, error) {
	return c.bulk(ctx, "deadletters.replay", tenant, q)
}

// DiscardMany discards the letters that a filter chooses, as ReplayMany replays them.
func (c *Client) DiscardMany(ctx context.Context, tenant string, q BulkRequest) (*BulkReply, error) {
	return c.bulk(ctx, "deadletters.discard", tenant, q)
}

// AssignMany hands the letters that a filter chooses to the owner To, as ReplayMany replays them.
func (c *Client) AssignMany(ctx context.Context, tenant string, q BulkRequest) (*BulkReply, error) {
	return c.bulk(ctx, "deadletters.assign", tenant, q)
}

func (c *Client) bulk(ctx context.Context, name, tenant string, q BulkRequest) (*BulkReply, error) {
	r := new(BulkReply)
	if err := c.call(ctx, name, tenant, bulkWithin, q, r); err != nil {
		return nil, err
	}
	return r, nil
}
