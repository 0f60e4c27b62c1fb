package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentrun/executor/internal/gateway"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// gatewayCall is a run that an agent makes by calling a tool through a gateway, again and again until it has an answer.
const (
	gatewayCall = "gateway call"
	agentActor  = "agent:crash"
)

// startGateways adds gateways, which are killed like everything else.
func (f *Fleet) startGateways(n int) error {
	for i := range n {
		name := fmt.Sprintf("g%d", i+1)
		link, err := NewLink(f.addr)
		if err != nil {
			return err
		}
		f.Links[name] = link
		port, err := freePort()
		if err != nil {
			return err
		}
		addr := net.JoinHostPort("127.0.0.1", port)
		p := &Process{
			Name: name, Role: Gateway, path: f.bin.path(Executor), log: filepath.Join(f.Dir, name+".log"), faults: f.Faults,
			args: []string{
				"gateway", "--nats", "nats://" + link.Addr, "--config", f.config(), "--http", addr, "--open",
				"--tenant", tenant, "--actor", agentActor, "--answer-within", "3s",
			},
		}
		f.supervise(p)
		f.Gateways = append(f.Gateways, p)
		f.gates = append(f.gates, "http://"+addr+"/mcp")
	}
	return nil
}

// drawCall makes a plan of a call: its run and its job are what any gateway makes of it.
func drawCall(n int, tool string) *Plan {
	who := &gateway.Caller{Tenant: tenant, Actor: agentActor}
	key := fmt.Sprintf("key-%06d", n)
	c, bad := gateway.ReadCall(who, tool, json.RawMessage(`{"amount":1}`), map[string]any{gateway.MetaKey: key})
	if bad != nil {
		panic(bad)
	}
	at := c.Keyed()
	return &Plan{
		ID: run.ID{Tenant: tenant, Run: at.Run}, Shape: gatewayCall, Jobs: []run.Job{*c.Job(at, "", "")}, key: key,
	}
}

// Heard by an agent.
type heard struct {
	tries   int
	final   bool
	isError bool
	id      string
	told    gateway.Told
}

// agent calls until it has an answer. Often it goes away before, and each time it may meet another gateway.
func (f *Fleet) agent(ctx context.Context, plan *Plan, r *rand.Rand) (h heard) {
	for ctx.Err() == nil && !h.final {
		h.tries++
		octx, cancel := context.WithTimeout(ctx, 200*time.Millisecond+time.Duration(r.Int64N(int64(4*time.Second))))
		err := h.once(octx, f.gates[r.IntN(len(f.gates))], plan)
		cancel()
		if err != nil {
			pause.For(ctx, 50*time.Millisecond)
		}
	}
	return h
}

func (h *heard) once(ctx context.Context, url string, plan *Plan) error {
	c := mcp.NewClient(&mcp.Implementation{Name: "crash", Version: "1"}, nil)
	s, err := c.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url, DisableStandaloneSSE: true, MaxRetries: -1}, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	step := plan.Jobs[0].Steps[0]
	result, err := s.CallTool(ctx, &mcp.CallToolParams{Name: step.Tool, Arguments: step.Args, Meta: mcp.Meta{gateway.MetaKeySEP: plan.key}})
	if err != nil {
		return err
	}
	data, err := json.Marshal(result.StructuredContent)
	if err != nil {
		return err
	}
	var done struct {
		ID string `json:"id"`
	}
	h.told = gateway.Told{}
	if err := json.Unmarshal(data, &h.told); err != nil {
		return err
	}
	if h.isError = result.IsError; !h.isError {
		if err := json.Unmarshal(data, &done); err != nil {
			return err
		}
	}
	h.id = done.ID
	h.final = !h.isError || h.told.MayDo != "ask_status" && h.told.MayDo != "call_again"
	return nil
}

// answer: what the agent was told is what happened.
func (j *judge) answer(p *Plan, gap map[string]bool) {
	if p.Shape != gatewayCall || p.reopened {
		return // an answer from before the store was put back is of a store that is gone
	}
	_, rows, _ := j.provider.Of(p.ID.String() + "/" + p.Jobs[0].Steps[0].Step)
	switch h := p.heard; {
	case !h.final:
		j.bad(p.ID, RuleLoss, "the agent has no answer after %d tries: %+v", h.tries, h.told)
	case h.told.Code == "KEY_TAKEN":
		j.bad(p.ID, RuleOutcome, "the agent was told that its key is another's")
	case !h.isError && (len(rows) == 0 || rows[0].ID != h.id && !gap[p.Jobs[0].Steps[0].Step]):
		j.bad(p.ID, RuleOutcome, "the agent was told %q, the ledger has %v", h.id, rows)
	case h.isError && h.told.Commit == envelope.NotCommitted && len(rows) > 0:
		j.bad(p.ID, RuleOutcome, "the agent was told that nothing was done (%s), the ledger has %v", h.told.Code, rows)
	}
}
