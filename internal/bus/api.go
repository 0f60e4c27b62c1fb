package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
)

// Stored is a message of a stream, as its leader has it.
type Stored struct {
	Subject string
	Seq     uint64
	Time    time.Time
	Header  nats.Header
	Data    []byte
}

// getRequest asks for the last message of a subject, or the first one from Seq on that matches NextBySubject.
type getRequest struct {
	Seq           uint64 `json:"seq,omitempty"`
	LastBySubject string `json:"last_by_subj,omitempty"`
	NextBySubject string `json:"next_by_subj,omitempty"`
}

// get reads at the leader: never the direct API, which any replica answers.
func (c *Conn) get(ctx context.Context, stream string, ask getRequest) (*Stored, error) {
	var reply struct {
		Message *struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := c.Ask(ctx, "STREAM.MSG.GET."+stream, ask, &reply); err != nil {
		return nil, err
	}
	m := reply.Message
	if m == nil {
		return nil, fmt.Errorf("%w: empty answer", port.ErrNotFound)
	}
	out := &Stored{Subject: m.Subject, Seq: m.Seq, Time: m.Time, Data: m.Data}
	if len(m.Header) > 0 {
		var err error
		if out.Header, err = nats.DecodeHeadersMsg(m.Header); err != nil {
			return nil, fmt.Errorf("headers of %s at %d: %w", m.Subject, m.Seq, err)
		}
	}
	return out, nil
}

// last reads the last message of a subject at the leader. Where the stream has one replica that is the leader, and the
// direct API, which answers without JSON, costs a third.
func (c *Conn) last(ctx context.Context, stream, subject string) (*Stored, error) {
	if !c.opts.Keeper.Single() {
		return c.get(ctx, stream, getRequest{LastBySubject: subject})
	}
	return c.direct(ctx, stream+"."+subject, nil)
}

// DirectGet reads a message by the direct API: that of a sequence, or, with a filter, the first from it on that matches.
// port.ErrNotFound.
func (c *Conn) DirectGet(ctx context.Context, stream string, seq uint64, filter string) (*Stored, error) {
	ask, err := json.Marshal(getRequest{Seq: seq, NextBySubject: filter})
	if err != nil {
		return nil, err
	}
	return c.direct(ctx, stream, ask)
}

// Request makes a request of the JetStream API and returns its first answer as it is.
func (c *Conn) Request(ctx context.Context, request string, body []byte) (*nats.Msg, error) {
	p := c.ask(request, body)
	defer p.close()
	return p.await(ctx)
}

// direct asks the direct API of a stream for one message; port.ErrNotFound if it is not there. Any replica answers, and it may be
// behind. of is the stream, or stream and subject.
func (c *Conn) direct(ctx context.Context, of string, ask []byte) (*Stored, error) {
	p := c.ask("DIRECT.GET."+of, ask)
	defer p.close()
	for {
		reply, err := p.await(ctx)
		if err != nil {
			return nil, err
		}
		if reply.Header.Get("Nats-Sequence") != "" {
			return DirectMessage(reply)
		}
		if reply.Header.Get("Status") == "404" {
			return nil, port.ErrNotFound
		}
		if err := p.again(ctx); err != nil {
			return nil, err
		}
	}
}

// added are the headers with which the direct API says what a message is.
var added = []string{
	"Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence",
}

// DirectMessage reads an answer of the direct API.
func DirectMessage(m *nats.Msg) (*Stored, error) {
	subject := m.Header.Get("Nats-Subject")
	seq, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("sequence of %s: %w", subject, err)
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp"))
	if err != nil {
		return nil, fmt.Errorf("time of %s at %d: %w", subject, seq, err)
	}
	for _, name := range added {
		delete(m.Header, name)
	}
	return &Stored{Subject: subject, Seq: seq, Time: at.UTC(), Header: m.Header, Data: m.Data}, nil
}

// LastLetter is the sequence of the last letter of a tenant ("": of all), said by the leader; 0 for none.
func (c *Conn) LastLetter(ctx context.Context, tenant string) (uint64, error) {
	return c.lastSequence(ctx, topology.LettersStream, within(topology.Letters, tenant))
}

// LastRun is LastLetter for the records.
func (c *Conn) LastRun(ctx context.Context, tenant string) (uint64, error) {
	return c.lastSequence(ctx, topology.RunsStream, within(topology.Runs, tenant))
}

// within matches all subjects of a tenant below a prefix; "" is every tenant.
func within(prefix, tenant string) string {
	if tenant == "" {
		return prefix + ">"
	}
	return prefix + tenant + ".>"
}

func (c *Conn) lastSequence(ctx context.Context, stream, filter string) (uint64, error) {
	m, err := c.get(ctx, stream, getRequest{LastBySubject: filter})
	switch {
	case errors.Is(err, port.ErrNotFound):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("bus: last message of %s: %w", stream, err)
	}
	return m.Seq, nil
}

// subjects calls fn with each subject of a stream that matches a filter.
func (c *Conn) subjects(ctx context.Context, stream, filter string, fn func(subject string)) error {
	ask := struct {
		Filter string `json:"subjects_filter"`
		Offset int    `json:"offset"`
	}{Filter: filter}
	for {
		var page struct {
			Total int `json:"total"`
			State struct {
				Subjects map[string]uint64 `json:"subjects"`
			} `json:"state"`
		}
		if err := c.Ask(ctx, "STREAM.INFO."+stream, ask, &page); err != nil {
			return err
		}
		for subject := range page.State.Subjects {
			fn(subject)
		}
		if ask.Offset += len(page.State.Subjects); len(page.State.Subjects) == 0 || ask.Offset >= page.Total {
			return nil
		}
	}
}

// Remove removes a message by its sequence; port.ErrNotFound if the sequence is gone already.
func (c *Conn) Remove(ctx context.Context, stream string, seq uint64) error {
	ask := struct {
		Seq     uint64 `json:"seq"`
		NoErase bool   `json:"no_erase"`
	}{seq, true}
	return c.Ask(ctx, "STREAM.MSG.DELETE."+stream, ask, nil)
}

// Ask makes a request of the JetStream API, for example STREAM.INFO.AGENTRUN_RUNS. It asks again while the answer is that there is no leader or no stream:
// both pass by themselves, the latter because the keeper makes it again.
func (c *Conn) Ask(ctx context.Context, request string, ask, answer any) error {
	var body []byte
	if ask != nil {
		var err error
		if body, err = json.Marshal(ask); err != nil {
			return err
		}
	}
	p := c.ask(request, body)
	defer p.close()
	for {
		reply, err := p.await(ctx)
		if err != nil {
			return err
		}
		var failed struct {
			Error *refusal `json:"error"`
		}
		if bytes.Contains(reply.Data, errorKey) {
			if err := json.Unmarshal(reply.Data, &failed); err != nil {
				return fmt.Errorf("answer of %s: %w", request, err)
			}
		}
		switch r := failed.Error; {
		case r == nil && answer == nil:
			return nil
		case r == nil:
			return json.Unmarshal(reply.Data, answer)
		case r.ErrCode == codeDeleteFailed:
			return fmt.Errorf("%w: %s", port.ErrNotFound, r.Description)
		case r.ErrCode == codeStreamNotFound:
			c.CheckStreams()
		case !r.passing():
			return r.err()
		}
		if err := p.again(ctx); err != nil {
			return err
		}
	}
}
