package bus

import (
	"errors"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/port"
)

func TestClockBounds(t *testing.T) {
	t.Parallel()
	var local time.Duration
	c := Clock{now: func() time.Duration { return local }}
	if c.Known() || !c.Lower().IsZero() || c.Upper().IsZero() {
		t.Fatal("an unread clock: nothing is due, and what is written is no earlier than now")
	}
	server := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)

	// Asked at 100 ms, answered at 300 ms: the server read its clock somewhere between.
	local = 300 * time.Millisecond
	c.sample(server, 100*time.Millisecond, 300*time.Millisecond)
	if lower, upper := c.Lower(), c.Upper(); !lower.Equal(server) || upper.Before(server.Add(200*time.Millisecond)) ||
		upper.After(server.Add(201*time.Millisecond)) {
		t.Fatalf("lower %s upper %s", lower, upper)
	}

	// Ten seconds on, the bounds have moved with the local clock and have opened by the drift.
	local += 10 * time.Second
	at := server.Add(10 * time.Second)
	if lower := c.Lower(); !lower.Equal(at.Add(-10 * time.Millisecond)) {
		t.Fatalf("lower %s, want 10 ms before %s", lower, at)
	}
	if upper := c.Upper(); upper.Sub(at) < 210*time.Millisecond || upper.Sub(at) > 212*time.Millisecond {
		t.Fatalf("upper %s after %s", upper.Sub(at), at)
	}

	// A quicker answer narrows them.
	c.sample(at.Add(100*time.Millisecond), local-time.Millisecond, local)
	if lower, upper := c.Lower(), c.Upper(); lower.Before(at.Add(100*time.Millisecond)) || upper.Sub(lower) > 2*time.Millisecond {
		t.Fatalf("lower %s upper %s", lower, upper)
	}

	// Another server's clock an hour behind: it is believed, not mixed with the former, and that is told.
	var jumps []time.Duration
	c.jumped = func(by time.Duration) { jumps = append(jumps, by) }
	defer func() {
		c.sample(at.Add(-time.Hour+500*time.Millisecond), local, local)
		c.sample(at, local, local)
		if len(jumps) != 2 || jumps[0].Round(time.Second) != -time.Hour || jumps[1].Round(time.Second) != time.Hour {
			t.Errorf("jumps of %v, wanted an hour back and forth, and nothing below a second", jumps)
		}
	}()
	c.sample(at.Add(-time.Hour), local, local)
	if lower, upper := c.Lower(), c.Upper(); !lower.Equal(at.Add(-time.Hour)) || !upper.Equal(at.Add(-time.Hour)) {
		t.Fatalf("lower %s upper %s", lower, upper)
	}
}

// A message that comes shows the clock of the server that stored it, if it can be that clock.
func TestClockHearsMessages(t *testing.T) {
	t.Parallel()
	var local time.Duration
	c := Clock{now: func() time.Duration { return local }}
	server := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	c.Heard(server)
	if c.Known() {
		t.Fatal("a message alone says nothing about an upper bound")
	}
	c.sample(server, 0, 200*time.Millisecond)
	local = 200 * time.Millisecond
	upper := c.Upper()
	for _, stored := range []time.Duration{150 * time.Millisecond, 100 * time.Millisecond, time.Minute, -time.Hour} {
		c.Heard(server.Add(stored))
		if got := c.Lower(); !got.Equal(server.Add(150*time.Millisecond)) || !c.Upper().Equal(upper) {
			t.Fatalf("after a message of %s: lower %s upper %s", stored, got.Sub(server), c.Upper().Sub(server))
		}
	}
	// However many messages come, the bounds open by the drift.
	for range 10_000 {
		local += time.Millisecond / 10
		c.Heard(c.Lower().Add(1))
	}
	if got := c.Upper().Sub(upper.Add(time.Second)); got < time.Millisecond*9/10 {
		t.Fatalf("after a second of messages the upper bound has moved by %s beside the clock, wanted 1 ms", got)
	}
}

func TestParseReply(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{
		"$JS.ACK.AGENTRUN_JOBS.executor-q.2.7.5.1900000000000000123.4",
		"$JS.ACK.hub.hash.AGENTRUN_JOBS.executor-q.2.7.5.1900000000000000123.4",
		"$JS.ACK._.hash.AGENTRUN_JOBS.executor-q.2.7.5.1900000000000000123.4.random",
	} {
		m, ok := ParseReply(reply)
		if !ok || m.Delivered != 2 || m.Stream != 7 || m.Consumer != 5 || m.Pending != 4 || m.At.UnixNano() != 1900000000000000123 {
			t.Errorf("%s: %+v %v", reply, m, ok)
		}
	}
	for _, reply := range []string{"", "_INBOX.a.b", "$JS.ACK.a.b", "$JS.ACK.a.b.c.d.e.f.g", "$JS.FC.a.b.c"} {
		if m, ok := ParseReply(reply); ok {
			t.Errorf("%s: %+v", reply, m)
		}
	}
}

func TestParseAck(t *testing.T) {
	t.Parallel()
	if seq, refused, ok := parseAck([]byte(`{"stream":"AGENTRUN_RUNS","seq":1234}`)); seq != 1234 || refused != nil || !ok {
		t.Errorf("%d %v %v", seq, refused, ok)
	}
	if seq, _, ok := parseAck([]byte(`{"stream":"S","domain":"d","seq": 5,"duplicate": true}`)); seq != 5 || !ok {
		t.Errorf("%d %v", seq, ok)
	}
	_, refused, ok := parseAck([]byte(`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 8"},"stream":"S","seq":0}`))
	if !ok || refused == nil || !refused.wrongSequence() {
		t.Fatalf("%+v %v", refused, ok)
	}
	if err := refused.err(); !errors.Is(err, port.ErrRefused) || errors.Is(err, port.ErrFull) {
		t.Errorf("for good: %v", err)
	}
	if last, told := refused.last(); last != 8 || !told {
		t.Errorf("last %d %v", last, told)
	}
	for _, garbage := range []string{"", "{}", `{"seq":}`, `{"error":1}`, "not json"} {
		if _, refused, ok := parseAck([]byte(garbage)); ok || refused != nil {
			t.Errorf("%q is taken for an answer", garbage)
		}
	}
}
