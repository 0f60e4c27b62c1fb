// Package client is what another Go service imports to work with agentrun: it submits jobs, watches and awaits their
// outcomes, and makes the operator calls.
//
//	nc, err := nats.Connect(url, nats.MaxReconnects(-1))
//	c, err := client.New(nc)
//	result, err := c.SubmitAndWait(ctx, &run.Job{Tenant: "acme", RunID: "case_7", …}, client.Options{})
//
// A publisher needs no more rights than the contract names for one tenant: publish on agentrun.jobs.*.<tenant>.>, subscribe
// to agentrun.results.<tenant>.> and to its own inbox (nats.CustomInboxPrefix is honoured), and, to read what was published
// before, publish on $JS.API.CONSUMER.CREATE.AGENTRUN_RESULTS.*.agentrun.results.<tenant>.>, or, for the last outcomes only,
// on $JS.API.DIRECT.GET.AGENTRUN_RESULTS.agentrun.results.<tenant>.*.*. Operator calls need the right to publish on
// agentrun.op.<noun>.<verb>.<tenant>.
//
// How a tool call or a run ended is data, never an error: an error means that it could not be learned.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/pkg/run"
)

// What callers branch on, with errors.Is.
var (
	// ErrNoStreams: nothing takes jobs or has results on this server. Executors and reconcilers make the streams.
	ErrNoStreams = errors.New("the streams are not there: start an executor or a reconciler on this NATS server first, they make the streams")
	// ErrQueueFull: the queue holds as many jobs as it may (--max-jobs). The job was not taken; try again later.
	ErrQueueFull = errors.New("the queue of jobs is full")
	// ErrUnacknowledged: the stream did not say in time that it has the job. It may have it; submit the same job again.
	ErrUnacknowledged = errors.New("the job was not acknowledged in time; submit it again, a job that arrives twice is done once")
	// ErrNotAllowed: the NATS user lacks a permission, or an operator call was refused with NOT_ALLOWED.
	ErrNotAllowed = errors.New("not allowed")
	// ErrNoReconciler: nobody answers operator calls on this server. Start a reconciler.
	ErrNoReconciler = errors.New("no reconciler answers operator calls")
	// ErrNotFound, ErrConflict, ErrClaimed, ErrBadRequest and ErrUnavailable are the other refusals of operator calls; see
	// OpError.
	ErrNotFound    = errors.New("not found")
	ErrConflict    = errors.New("conflict")
	ErrClaimed     = errors.New("claimed by somebody else")
	ErrBadRequest  = errors.New("bad request")
	ErrUnavailable = errors.New("unavailable: make the same call again")
)

// Client speaks to one agentrun installation over one NATS connection. Safe for concurrent use; it holds no state that
// must be closed, and never changes the connection.
type Client struct {
	nc      *nats.Conn
	api     bus.API
	js      jetstream.JetStream
	denials sync.Map // what the user may not, by kind and tenant: asked once, so that the server's log is not full of it
}

// Option says where the streams are, if it is not the JetStream of the connection's own account and server.
type Option func(*Client)

// Domain names the JetStream domain that has the streams: that of the hub, for a connection to a leaf node. In the subjects
// of permissions $JS.<domain>.API then stands for $JS.API.
func Domain(name string) Option { return func(c *Client) { c.api.Domain = name } }

// APIPrefix names what the connection's account imports another account's $JS.API as, without a dot at its end. In the
// subjects of permissions it then stands for $JS.API.
func APIPrefix(subject string) Option { return func(c *Client) { c.api.Prefix = subject } }

// New makes a client of a connection, which stays the caller's: its reconnect policy, its handlers, its Close. Connect with
// nats.MaxReconnects(-1), or a server that is away for two minutes ends the connection for good.
// The error is of an option that cannot be meant: a name that is no part of a subject, or both Domain and APIPrefix.
func New(nc *nats.Conn, options ...Option) (*Client, error) {
	c := &Client{nc: nc}
	for _, set := range options {
		set(c)
	}
	var err error
	if c.js, err = c.api.JetStream(nc); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return c, nil
}

// checkRun refuses names that would reach other subjects than one run's.
func checkRun(tenant, runID string) (run.ID, error) {
	const form = "is no identifier (letters, digits, _ and -, at most 64, the first a letter or digit)"
	switch {
	case !run.ValidID(tenant):
		return run.ID{}, fmt.Errorf("the tenant %q %s", tenant, form)
	case !run.ValidID(runID):
		return run.ID{}, fmt.Errorf("the run_id %q %s", runID, form)
	}
	return run.ID{Tenant: tenant, Run: runID}, nil
}

// deniedEvery is how often a request that has no answer yet is checked for a refusal: the server tells of a missing
// permission beside the request, not in answer to it.
const deniedEvery = 20 * time.Millisecond

// unlessDenied returns a context that also ends, with ErrNotAllowed, once the server has said that this connection may not
// use one of the subjects. Call stop when the request has ended.
func (c *Client) unlessDenied(ctx context.Context, subjects ...string) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(deniedEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for _, s := range subjects {
				if c.denied(s) {
					cancel(fmt.Errorf("%w: this NATS user has no permission for %s", ErrNotAllowed, s))
					return
				}
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// inboxes are the subjects that replies come to.
func (c *Client) inboxes() string {
	return cmp.Or(c.nc.Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, ".")) + ".>"
}

// denied reports whether the server's latest word on this connection is that it may not use the subject, or one of those
// that a subject ending with > stands for.
func (c *Client) denied(subject string) bool {
	err := c.nc.LastError()
	prefix, all := strings.CutSuffix(subject, ">")
	return errors.Is(err, nats.ErrPermissionViolation) && (strings.Contains(err.Error(), `"`+subject+`"`) || all && strings.Contains(err.Error(), `"`+prefix))
}
