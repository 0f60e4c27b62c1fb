package bus_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

// An outcome follows from a record. Where the server has been started anew, perhaps on an older copy of its store, another
// record may stand there, from which another outcome follows under the same number: the first is not sent.
func TestAnOutcomeOfARestoredRecordIsNotSent(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	c := streamstest.SetUp(t, server.URL, streams.Config{})
	ctx := streamstest.Deadline(t)
	id := streamstest.RunID(1)
	first, err := c.Save(ctx, id, []byte("not started"), port.Header{State: "s"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	server.Stop()
	putBack := server.Copy()
	server.StartAgain()
	if _, err = c.Save(ctx, id, []byte("succeeded"), port.Header{State: "s"}, first); err != nil {
		t.Fatal(err)
	}
	shown := c.Server()
	server.Stop()
	putBack()
	server.StartAgain()

	out := []port.Outgoing{{Outcome: which(id, envelope.StepScope, 1), First: first, Data: []byte("succeeded")}}
	if seqs, err := c.Append(ctx, shown, out); !errors.Is(err, port.ErrConflict) || seqs[0] != 0 || out[0].New {
		t.Fatalf("the outcome of a record that is gone: %v %v", seqs, err)
	}
	if n := streamstest.State(t, server, topology.ResultsStream).Msgs; n != 0 {
		t.Fatalf("%d outcomes of a record that is gone", n)
	}
	out[0].Data = []byte("refused")
	if seqs, err := c.Append(ctx, c.Server(), out); err != nil || seqs[0] == 0 || !out[0].New {
		t.Fatalf("the outcome of the record that is there: %v %v", seqs, err)
	}
}

// Stored, and the server is started anew before it could say so: the outcome counts as this one's, and is there once.
func TestAnOutcomeStoredBeforeARestartIsOnesOwn(t *testing.T) {
	t.Parallel()
	server := bustest.Start(t)
	proxy := bustest.StartProxy(t, server)
	c := streamstest.SetUp(t, proxy.URL, streams.Config{})
	ctx := streamstest.Deadline(t)
	var losing bool // from the acknowledgement on, nothing is heard of the server
	lost := make(chan struct{})
	proxy.Drop(func(_ string, payload []byte) bool {
		if !losing && bytes.HasPrefix(payload, fmt.Appendf(nil, `{"stream":%q`, topology.ResultsStream)) {
			losing = true
			close(lost)
		}
		return losing
	})
	out := []port.Outgoing{{Outcome: which(streamstest.RunID(1), envelope.StepScope, 1), First: 5, Data: []byte("a")}}
	shown := c.Server()
	type answer struct {
		seqs []uint64
		err  error
	}
	done := make(chan answer, 1)
	go func() {
		seqs, err := c.Append(ctx, shown, out)
		done <- answer{seqs, err}
	}()
	streamstest.Receive(t, "the loss", lost)
	server.Stop()
	proxy.Drop(nil)
	server.StartAgain()
	got := streamstest.Receive(t, "the answer", done)
	if got.err != nil || got.seqs[0] == 0 || !out[0].New {
		t.Fatalf("%+v, its own: %v", got, out[0].New)
	}
	if n := streamstest.State(t, server, topology.ResultsStream).Msgs; n != 1 {
		t.Fatalf("%d messages", n)
	}
}
