package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

func job(runID string, more bool, steps ...run.JobStep) *run.Job {
	return &run.Job{Tenant: "acme", RunID: runID, More: more, Steps: steps}
}

func step(name, tool, args string) run.JobStep {
	return run.JobStep{Step: name, Tool: tool, Args: json.RawMessage(args)}
}

// A job that is submitted again gets the answer that it got; one that amends a step waits for the new end.
func TestSubmitAndWaitAgain(t *testing.T) {
	t.Parallel() // it waits
	i, nc := installed(t)
	c := newClient(t, nc)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ask := func(j *run.Job) *client.Result {
		t.Helper()
		r, err := c.SubmitAndWait(ctx, j, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	once := job("r1", false, step("a", "refund", `{"n":1}`))
	if r := ask(once); r.Outcome != envelope.OK || r.Repeated || r.Run == nil {
		t.Errorf("%+v", r)
	}
	if r := ask(once); r.Outcome != envelope.OK || !r.Repeated || r.Run == nil || i.paid() != 1 {
		t.Errorf("again: %+v, %d payments", r, i.paid())
	}
	if r := ask(job("r1", false, step("b", "refund", `{"n":2}`))); r.Outcome != envelope.Fatal || r.Refused == nil || r.Refused.Envelope.Code != envelope.CodeRunClosed {
		t.Errorf("into a closed run: %+v", r)
	}

	// An open run: the job's own steps are waited for.
	if r := ask(job("r2", true, step("a", "find_order", `{}`), step("b", "refund", `{}`))); r.Outcome != envelope.OK || r.Run != nil || len(r.Steps) != 2 {
		t.Errorf("an open run: %+v", r)
	}
	if r := ask(job("r2", true, step("c", "picky", `{"n":"one"}`))); r.Outcome != envelope.Fatal || r.Steps["c"].Envelope.Code != envelope.CodeInvalidArgument {
		t.Errorf("a step that is refused: %+v", r)
	}
	if r := ask(job("r2", true, step("c", "picky", `{"n":"one"}`))); r.Outcome != envelope.Fatal || r.Steps["c"].Envelope.Code != envelope.CodeIdenticalRetry {
		t.Errorf("the same args again: %+v", r)
	}
	// The amended step takes longer than a repeated job is waited for; its old end is no answer.
	time.AfterFunc(3*time.Second, func() { close(i.hold) })
	if r := ask(job("r2", true, step("c", "picky", `{"n":1}`))); r.Outcome != envelope.OK || r.Repeated {
		t.Errorf("amended: %+v", r)
	}
	if r := ask(job("r2", false)); r.Outcome != envelope.OK || r.Run == nil {
		t.Errorf("closed: %+v", r)
	}
}

func (i *installation) paid() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.payments
}

// The caller's deadline ends the wait, not the run.
func TestSubmitAndWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	i, nc := installed(t)
	c := newClient(t, nc)
	why := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, why)
	defer cancel()
	if r, err := c.SubmitAndWait(ctx, job("r1", false, step("a", "wait", `{}`)), client.Options{}); !errors.Is(err, why) {
		t.Fatalf("%+v, %v", r, err)
	}
	close(i.hold)
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if r, err := c.Wait(ctx, "acme", "r1"); err != nil || r.Outcome != envelope.OK {
		t.Fatalf("%+v, %v", r, err)
	}
	closed, err := i.connect()
	if err != nil {
		t.Fatal(err)
	}
	gone := newClient(t, closed)
	w, err := gone.Watch(ctx, "acme", "r2")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	closed.Close()
	if _, err := w.Next(ctx); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("on a closed connection: %v", err)
	}
}

func is(t *testing.T, what string, err, want error) {
	t.Helper()
	var refused *client.OpError
	if !errors.Is(err, want) || !errors.As(err, &refused) || refused.Message == "" {
		t.Errorf("%s: %v, wanted %v", what, err, want)
	}
	for _, other := range []error{client.ErrNotFound, client.ErrNotAllowed, client.ErrConflict, client.ErrClaimed, client.ErrBadRequest} {
		if other != want && errors.Is(err, other) {
			t.Errorf("%s: %v is also %v", what, err, other)
		}
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestOperatorCalls(t *testing.T) {
	t.Parallel()
	i, nc := installed(t)
	c := newClient(t, nc)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ends := func(runID, tool string, want envelope.Word) {
		t.Helper()
		r, err := c.SubmitAndWait(ctx, job(runID, false, step("a", tool, `{"n":1}`)), client.Options{})
		if err != nil || r.Outcome != want {
			t.Fatalf("%s: %+v, %v", runID, r, err)
		}
	}
	i.refuses(true)
	for _, runID := range []string{"f1", "f2", "f3", "f4"} {
		ends(runID, "refund", envelope.Fatal)
	}
	ends("u1", "break", envelope.NeedsHuman)
	ends("p1", "approved", envelope.NeedsHuman)
	i.refuses(false)

	page := must[*client.LetterPage](t)(c.List(ctx, "acme", client.ListRequest{Filter: client.Filter{Tool: "refund"}, Limit: 3}))
	if len(page.DeadLetters) != 3 || page.Total != 4 || page.After == "" || page.DeadLetters[0].RunID != "f1" || page.DeadLetters[0].Owner != "billing-oncall" {
		t.Errorf("a page: %+v", page)
	}
	var seen []string
	for l, err := range c.Letters(ctx, client.AllTenants, client.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, l.RunID)
	}
	if strings.Join(seen, " ") != "f1 f2 f3 f4 u1 p1" {
		t.Errorf("all letters: %v", seen)
	}
	if l := must[*client.LetterPage](t)(c.List(ctx, "nobody", client.ListRequest{})); l.Total != 0 {
		t.Errorf("letters of nobody: %+v", l)
	}
	letter, err := c.Get(ctx, "acme", "f2")
	if err != nil || len(letter.Attempts) != 1 || string(letter.Request) != `{"n":1}` {
		t.Errorf("%+v, %v", letter, err)
	}

	// Claimed by ada: others may not.
	claimed, err := c.Claim(ctx, "acme", client.ClaimRequest{By: "ada", For: time.Minute})
	if err != nil || claimed.RunID != "f1" {
		t.Fatalf("%+v, %v", claimed, err)
	}
	replay := client.ReplayRequest{RunID: "f1", Letter: claimed.ID, By: "bob", Reason: "try"}
	_, err = c.Replay(ctx, "acme", replay)
	is(t, "another's claim", err, client.ErrClaimed)
	replay.By, replay.Letter = "ada", "acme/f1/7"
	_, err = c.Replay(ctx, "acme", replay)
	is(t, "another letter", err, client.ErrConflict)
	replay.Letter, replay.Reason = claimed.ID, ""
	_, err = c.Replay(ctx, "acme", replay)
	is(t, "no reason", err, client.ErrBadRequest)
	tokens := int64(10)
	replay.Reason, replay.AddBudget = "the bank is back", &budget.Request{MaxInputTokens: &tokens}
	first := must[*client.Episode](t)(c.Replay(ctx, "acme", replay))
	again := must[*client.Episode](t)(c.Replay(ctx, "acme", replay))
	if first.Episode != 2 || first.RunID != "f1" || *again != *first {
		t.Errorf("replayed as %+v, then %+v", first, again)
	}
	if r, err := c.WaitEpisode(ctx, "acme", "f1", 2); err != nil || r.Outcome != envelope.OK {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = c.Get(ctx, "acme", "f1")
	is(t, "a settled letter", err, client.ErrNotFound)
	none, err := c.Claim(ctx, "acme", client.ClaimRequest{Owner: "nobody", By: "ada"})
	if err != nil || none != nil {
		t.Errorf("%+v, %v", none, err)
	}

	// In bulk.
	bulk, err := c.ReplayMany(ctx, "acme", client.BulkRequest{Filter: client.Filter{Tool: "refund"}, Limit: 2, By: "ada", Reason: "the bank is back"})
	if err != nil || len(bulk.Results) != 2 || !bulk.Results[0].OK || bulk.Results[0].Episode != 2 || bulk.Left != 1 {
		t.Errorf("%+v, %v", bulk, err)
	}
	if err := c.Assign(ctx, "acme", client.AssignRequest{RunID: "f4", To: "platform", By: "ada", Reason: "not ours"}); err != nil {
		t.Error(err)
	}
	if l := must[*deadletter.Letter](t)(c.Get(ctx, "acme", "f4")); l.Owner != "platform" || l.AssignedAt == 0 {
		t.Errorf("handed on: %+v", l.Summary)
	}
	is(t, "to nobody", c.Assign(ctx, "acme", client.AssignRequest{RunID: "f4", By: "ada", Reason: "not ours"}), client.ErrBadRequest)
	if bulk, err = c.AssignMany(ctx, "acme", client.BulkRequest{Filter: client.Filter{Owner: "platform"}, To: "support", By: "ada", Reason: "theirs"}); err != nil || len(bulk.Results) != 1 || !bulk.Results[0].OK {
		t.Errorf("%+v, %v", bulk, err)
	}
	if err := c.Discard(ctx, "acme", client.DiscardRequest{RunID: "f4", By: "ada", Reason: "told the customer"}); err != nil {
		t.Error(err)
	}
	is(t, "discarded by another", c.Discard(ctx, "acme", client.DiscardRequest{RunID: "f4", By: "bob", Reason: "me too"}), client.ErrNotFound)

	// What a person knows.
	letter = must[*deadletter.Letter](t)(c.Get(ctx, "acme", "u1"))
	_, err = c.Replay(ctx, "acme", client.ReplayRequest{RunID: "u1", By: "ada", Reason: "again"})
	is(t, "replay of an unknown write", err, client.ErrNotAllowed)
	resolved := must[*client.Episode](t)(c.Resolve(ctx, "acme", client.ResolveRequest{
		RunID: "u1", Letter: letter.ID, By: "ada", Reason: "seen in the bank's books", CommitState: envelope.Committed, EvidenceRef: "bank:7",
	}))
	if r, err := c.WaitEpisode(ctx, "acme", "u1", resolved.Episode); err != nil || r.Outcome != envelope.OK {
		t.Errorf("%+v, %v", r, err)
	}
	letter = must[*deadletter.Letter](t)(c.Get(ctx, "acme", "p1"))
	approved := must[*client.Episode](t)(c.Approve(ctx, "acme", client.ApproveRequest{RunID: "p1", Letter: letter.ID, By: "ada", Reason: "fine"}))
	if r, err := c.WaitEpisode(ctx, "acme", "p1", approved.Episode); err != nil || r.Outcome != envelope.OK {
		t.Errorf("%+v, %v", r, err)
	}
	bulk, err = c.DiscardMany(ctx, "acme", client.BulkRequest{By: "ada", Reason: "spring cleaning"})
	if err != nil || bulk.Left != 0 {
		t.Errorf("%+v, %v", bulk, err)
	}
}

func TestRunCalls(t *testing.T) {
	t.Parallel()
	i, nc := installed(t)
	c := newClient(t, nc)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.SubmitAndWait(ctx, job("r1", false, step("a", "refund", `{}`)), client.Options{}); err != nil {
		t.Fatal(err)
	}
	view, err := c.GetRun(ctx, "acme", "r1")
	if err != nil || view.State != "ok" || view.Workflow != "refunds" || len(view.Steps) != 1 || len(view.CompletedEffects) != 1 {
		t.Errorf("%+v, %v", view, err)
	}
	_, err = c.GetRun(ctx, "acme", "none")
	is(t, "a run that is not there", err, client.ErrNotFound)
	_, err = c.GetRun(ctx, "a.b", "r1")
	is(t, "a tenant that is none", err, client.ErrBadRequest)
	_, err = c.ListRuns(ctx, "acme", client.ListRunsRequest{State: "lost"})
	is(t, "a state that is none", err, client.ErrBadRequest)

	if _, err := c.Submit(ctx, job("r2", true, step("a", "refund", `{}`), step("b", "wait", `{}`)), client.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(ctx, "acme", "r2", "a"); err != nil {
		t.Fatal(err)
	}
	page, err := c.ListRuns(ctx, "acme", client.ListRunsRequest{State: "ok", Workflow: "refunds"})
	if err != nil || len(page.Runs) != 1 || page.Runs[0].RunID != "r1" {
		t.Errorf("%+v, %v", page, err)
	}
	state, err := c.Report(ctx, "acme", client.ReportRequest{RunID: "r2", Step: "a", CommitState: envelope.Committed, EvidenceRef: "bank:8", By: "webhook"})
	if err != nil || state == "" {
		t.Errorf("%q, %v", state, err)
	}
	if _, err := c.CancelRun(ctx, "acme", client.CancelRequest{RunID: "r2", By: "ada", Reason: "the customer called"}); err != nil {
		t.Error(err)
	}
	if r, err := c.Wait(ctx, "acme", "r2"); err != nil || r.Outcome != envelope.Cancelled {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = c.DiscardRun(ctx, "acme", client.DiscardRunRequest{RunID: "r1", By: "ada", Reason: "it looks odd"})
	is(t, "discarding a run whose record is whole", err, client.ErrNotAllowed)
	close(i.hold)
}
