package client

import (
	"context"
	"encoding/json"

	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// GetRun returns a run as its record shows it, history included. ErrNotFound: nothing of it was accepted yet, or it is
// forgotten.
func (c *Client) GetRun(ctx context.Context, tenant, runID string) (*run.View, error) {
	var r struct {
		Run *run.View `json:"run"`
	}
	if err := c.call(ctx, "runs.get", tenant, callWithin, map[string]string{"run_id": runID}, &r); err != nil {
		return nil, err
	}
	return r.Run, nil
}

// GetPayload returns the args and results of a run's steps, as far as they are still known and fit one reply. It needs a
// permission of its own: publish on agentrun.op.runs.payload.<tenant>. ErrNotFound as GetRun.
func (c *Client) GetPayload(ctx context.Context, tenant, runID string) ([]run.Payload, error) {
	var r struct {
		Steps []run.Payload `json:"steps"`
	}
	if err := c.call(ctx, "runs.payload", tenant, callWithin, map[string]string{"run_id": runID}, &r); err != nil {
		return nil, err
	}
	return r.Steps, nil
}

// ListRunsRequest asks for a page of runs.
type ListRunsRequest struct {
	State    string `json:"state,omitempty"` // a state of contract §9, or the word of an end; "": all
	Workflow string `json:"workflow,omitempty"`
	Limit    int    `json:"limit,omitempty"` // 0: 100
	After    string `json:"after,omitempty"` // of the page before; opaque
}

// RunPage is a page of runs by their last change, oldest first, without their history. After is empty on the last page; a
// page may be empty before that.
type RunPage struct {
	Runs  []run.View `json:"runs"`
	After string     `json:"after"`
}

// ListRuns returns a page of a tenant's runs.
func (c *Client) ListRuns(ctx context.Context, tenant string, q ListRunsRequest) (*RunPage, error) {
	page := new(RunPage)
	if err := c.call(ctx, "runs.list", tenant, callWithin, q, page); err != nil {
		return nil, err
	}
	return page, nil
}

// CancelRequest stops a run.
type CancelRequest struct {
	RunID  string `json:"run_id"`
	By     string `json:"by"`
	Reason string `json:"reason"`
}

type stateReply struct {
	State string `json:"state"`
}

// CancelRun records that a run is to stop, and returns its state then: cancelling, or the word of its end. Nothing new
// starts; a write in flight is awaited or verified first. Wait for the end with Wait.
func (c *Client) CancelRun(ctx context.Context, tenant string, q CancelRequest) (state string, err error) {
	var r stateReply
	err = c.call(ctx, "runs.cancel", tenant, callWithin, q, &r)
	return r.State, err
}

// DiscardRunRequest ends a run whose stored record breaks a rule.
type DiscardRunRequest struct {
	RunID  string `json:"run_id"`
	By     string `json:"by"`
	Reason string `json:"reason"`
}

// DiscardRun ends a run whose stored record breaks a rule and is left alone by everybody; the record is kept as it was
// found. It returns the run's state then. ErrNotAllowed: the record is whole, see CancelRun.
func (c *Client) DiscardRun(ctx context.Context, tenant string, q DiscardRunRequest) (state string, err error) {
	var r stateReply
	err = c.call(ctx, "runs.discard", tenant, callWithin, q, &r)
	return r.State, err
}

// ReportRequest is what a program learned about a write, for example from a webhook.
type ReportRequest struct {
	RunID       string               `json:"run_id"`
	Step        string               `json:"step"`
	Attempt     int                  `json:"attempt,omitempty"` // 0: any; a not_committed counts only for the attempt that it names
	CommitState envelope.CommitState `json:"commit_state"`      // committed or not_committed
	Result      json.RawMessage      `json:"result,omitempty"`
	EvidenceRef string               `json:"evidence_ref"` // at most 1 KiB
	By          string               `json:"by"`
}

// Report hands in evidence about a write and returns the run's state after it.
func (c *Client) Report(ctx context.Context, tenant string, q ReportRequest) (state string, err error) {
	var r stateReply
	err = c.call(ctx, "runs.report", tenant, callWithin, q, &r)
	return r.State, err
}
