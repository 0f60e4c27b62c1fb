package main

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"
)

// Gateways, executor and server are killed in the middle of a write. The same call, made again through whatever gateway is
// there, gets the one result; with other args it is refused.
func TestTheSameCallThroughKillsIsDoneOnce(t *testing.T) {
	came := make(chan struct{}, 1)
	f, _ := follow(t, time.Second, 4, func(q *Request) string {
		if q.Nth == 1 {
			select {
			case came <- struct{}{}:
			default:
			}
			return "commit,hang" // done, and nobody will hear of it
		}
		return "commit,answer" // twice, if it is sent again
	})
	if err := f.startGateways(2); err != nil {
		t.Fatal(err)
	}
	p := drawCall(1, "pay")
	first := make(chan heard, 1)
	go func() { first <- f.agent(f.ctx, p, rand.New(rand.NewPCG(1, 1))) }()
	select {
	case <-came:
	case <-time.After(30 * time.Second):
		t.Fatal("the call did not arrive within 30 s")
	}
	for _, victim := range append(f.Gateways, f.Executors[0], f.NATS) {
		if _, ok := victim.Kill(0, nil); !ok {
			t.Errorf("%s was not there to be killed", victim.Name)
		}
	}
	ref := p.ID.String() + "/" + p.Jobs[0].Steps[0].Step
	for i := range 3 {
		h := heard{}
		switch {
		case i > 0:
			h = f.agent(f.ctx, p, rand.New(rand.NewPCG(1, uint64(i))))
		default:
			select {
			case h = <-first:
			case <-time.After(60 * time.Second):
				t.Fatal("the agent has no answer within 60 s")
			}
		}
		_, rows, _ := f.Provider.Of(ref)
		if len(rows) != 1 || h.isError || h.id != rows[0].ID {
			t.Fatalf("call %d was told %+v after %d tries, the ledger has %v", i, h, h.tries, rows)
		}
	}
	other := drawCall(1, "pay")
	other.Jobs[0].Steps[0].Args = json.RawMessage(`{"amount":2}`)
	if h := f.agent(f.ctx, other, rand.New(rand.NewPCG(1, 1))); h.told.Code != "KEY_TAKEN" {
		t.Errorf("the same key with other args was told %+v", h.told)
	}
	if requests, _, _ := f.Provider.Of(ref); len(requests) != 1 {
		t.Errorf("%d requests", len(requests))
	}
}
