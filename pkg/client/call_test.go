package client_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/pkg/client"
)

// A call that has no method of its own takes the reply as it came, and args travel with the text that they were given with.
func TestCall(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	nc := s.Conn()
	if _, err := nc.Subscribe("agentrun.op.runs.later.acme", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"ok":true,"heard":` + string(m.Data) + `}`))
	}); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	var raw json.RawMessage
	request := client.ReplayRequest{RunID: "r", Args: json.RawMessage(`{"a":"<1&2>"}`)}
	if err := c.Call(t.Context(), "runs.later", "acme", request, &raw); err != nil {
		t.Fatal(err)
	}
	if want := `{"ok":true,"heard":{"run_id":"r","by":"","reason":"","args":{"a":"<1&2>"}}}`; string(raw) != want {
		t.Errorf("the reply is %s, wanted %s", raw, want)
	}
	if err := c.Call(t.Context(), "runs.later", "a.b", nil, nil); !errors.Is(err, client.ErrBadRequest) {
		t.Errorf("of no tenant: %v", err)
	}
}
