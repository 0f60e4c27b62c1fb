package engine

import (
	"testing"

	"github.com/agentrun/executor/pkg/run"
)

func TestTraceID(t *testing.T) {
	id := run.ID{Tenant: "acme", Run: "r1"}
	const (
		given = "4bf92f3577b34da6a3ce929d0e0e4736"
		own   = "5a6a5c3b5fe7ad4c6ef9b1d5c4d7bd0a"
	)
	derived := TraceID(id, "")
	if len(derived) != 32 || derived == TraceID(run.ID{Tenant: "acme", Run: "r2"}, "") || derived != (&Run{Tenant: "acme", RunID: "r1"}).TraceID() {
		t.Errorf("a run without traceparent has the trace %q", derived)
	}
	for traceparent, want := range map[string]string{
		"00-" + given + "-00f067aa0ba902b7-01":                    given,
		"00-" + given + "-00f067aa0ba902b7-00":                    given,
		"01-" + given + "-00f067aa0ba902b7-01-more":               given,
		"00-" + given + "-00f067aa0ba902b7-01-more":               derived,
		"ff-" + given + "-00f067aa0ba902b7-01":                    derived,
		"00-" + given + "-0000000000000000-01":                    derived,
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": derived,
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01": derived,
		"00-" + given[:31] + "-00f067aa0ba902b7-01":               derived,
		"00-" + own + "-00f067aa0ba902b7":                         derived,
		"nonsense":                                                derived,
	} {
		if got := TraceID(id, traceparent); got != want {
			t.Errorf("%s: %s, wanted %s", traceparent, got, want)
		}
	}
}
