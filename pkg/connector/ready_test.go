package connector

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
)

// slow is a kind whose far side has to be made ready first.
type slow struct {
	*stub
	makes time.Duration
	fails bool
	left  time.Duration // of the request's time, when it could leave
	sent  int
}

func (s *slow) Prepare(Preparation) (Transport, error) { return s, nil }
func (s *slow) ReadyWithin() time.Duration             { return time.Hour }

func (s *slow) Ready(ctx context.Context) bool {
	select {
	case <-time.After(s.makes):
		return !s.fails
	case <-ctx.Done():
		return false
	}
}

func (s *slow) RoundTrip(ctx context.Context, r *Request) Response {
	s.sent++
	if deadline, ok := ctx.Deadline(); ok {
		s.left = time.Until(deadline)
	}
	return s.stub.RoundTrip(ctx, r)
}

// What a call needs first does not use up its time, nor a lookup's; one that cannot be made ready was not sent.
func TestACallsOwnTimeBeginsWhenItCanLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kind := &slow{stub: &stub{name: KindCommand, answer: Response{Body: []byte("{}")}}, makes: time.Minute}
		spec := Spec{Name: "tool", Effect: envelope.Write, Kind: kindSpec(KindCommand), Timeout: 2 * time.Second}
		verify(&spec)
		spec.Verify.Timeout = 3 * time.Second
		tool, err := Compile(spec, kind)
		if err != nil {
			t.Fatal(err)
		}
		if tool.ReadyWithin != time.Hour {
			t.Errorf("ready within %s", tool.ReadyWithin)
		}
		if got := tool.Caller.Call(t.Context(), testCall()); !got.OK || kind.left != 2*time.Second {
			t.Errorf("a call: %s left, %+v", kind.left, got)
		}
		if tool.Looker.Lookup(t.Context(), testCall()); kind.left != 3*time.Second {
			t.Errorf("a lookup: %s left", kind.left)
		}
		kind.fails = true
		if got := tool.Caller.Call(t.Context(), testCall()); !got.NotSent || got.Row.Code != envelope.CodeUpstreamUnavailable || kind.sent != 2 {
			t.Errorf("never ready: %+v, %d requests", got, kind.sent)
		}
		kind.fails = false
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := tool.Caller.Call(ctx, testCall()); !got.NotSent || kind.sent != 2 {
			t.Errorf("the run's own time was over first: %+v, %d requests", got, kind.sent)
		}
	})
}
