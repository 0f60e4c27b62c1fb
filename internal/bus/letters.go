package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/run"
)

// headerLetterID is a letter's id beside its body.
const headerLetterID = "Agentrun-Letter-Id"

// PutLetter is port.Store's. The rules and errors are those of Save. A letter that exists can be replaced even when the
// stream is full.
func (c *Conn) PutLetter(ctx context.Context, id run.ID, owner string, data []byte, letterID string, expect uint64) (seq uint64, err error) {
	subject := topology.LetterSubject(id.Tenant, owner, id.Run)
	err = ErrNotLiteral
	if topology.Literal(subject) {
		h := nats.Header{headerExpect: {strconv.FormatUint(expect, 10)}, headerLetterID: {letterID}}
		seq, err = c.compareAndSet(ctx, topology.LettersStream, &nats.Msg{Subject: subject, Header: h, Data: data}, expect)
	}
	if err != nil {
		return 0, fmt.Errorf("bus: put letter %s at %d: %w", subject, expect, err)
	}
	return seq, nil
}

// GetLetter is port.Store's.
func (c *Conn) GetLetter(ctx context.Context, id run.ID, owner string) (port.Letter, error) {
	subject := topology.LetterSubject(id.Tenant, owner, id.Run)
	m, err := c.last(ctx, topology.LettersStream, subject)
	if err != nil {
		return port.Letter{}, fmt.Errorf("bus: get letter %s: %w", subject, err)
	}
	return letterOf(m.Subject, m.Seq, m.Time, m.Header, m.Data), nil
}

// Lettered are the runs that have a letter's message at this moment. Removals are not seen by a watch.
func (c *Conn) Lettered(ctx context.Context) (map[run.ID]bool, error) {
	out := map[run.ID]bool{}
	err := c.subjects(ctx, topology.LettersStream, topology.Letters+">", func(subject string) {
		if tenant, _, runID, ok := topology.ParseLetterSubject(subject); ok {
			out[run.ID{Tenant: tenant, Run: runID}] = true
		}
	})
	if err != nil {
		return nil, fmt.Errorf("bus: runs that have a letter: %w", err)
	}
	return out, nil
}

// DeleteLetter is port.Store's; one that was replaced is gone too.
func (c *Conn) DeleteLetter(ctx context.Context, seq uint64) error {
	if err := c.Remove(ctx, topology.LettersStream, seq); err != nil && !errors.Is(err, port.ErrNotFound) {
		return fmt.Errorf("bus: delete letter at %d: %w", seq, err)
	}
	return nil
}

func letterOf(subject string, seq uint64, at time.Time, h nats.Header, data []byte) port.Letter {
	l := port.Letter{LetterID: h.Get(headerLetterID), Data: data, Seq: seq, Time: at}
	l.ID.Tenant, l.Owner, l.ID.Run, _ = topology.ParseLetterSubject(subject)
	return l
}

// PutAlert is port.Store's: it waits for the acknowledgement. id lets the server drop a repetition within its window;
// nothing depends on it, and an alert may come twice.
func (c *Conn) PutAlert(ctx context.Context, tenant, owner, reason string, data []byte, id string) error {
	msg := &nats.Msg{Subject: topology.AlertSubject(tenant, owner, reason), Data: data}
	if id != "" {
		msg.Header = nats.Header{nats.MsgIdHdr: {id}}
	}
	err := ErrNotLiteral
	if topology.Literal(msg.Subject) {
		err = c.put(ctx, msg)
	}
	if err != nil {
		return fmt.Errorf("bus: publish alert %s: %w", msg.Subject, err)
	}
	return nil
}

// put publishes a message whose second copy does no harm and waits until it is stored.
func (c *Conn) put(ctx context.Context, msg *nats.Msg) error {
	p := c.publish(msg)
	defer p.close()
	_, refused, err := p.stored(ctx)
	if err == nil && refused != nil {
		err = refused.err()
	}
	return err
}

// hint is the body of a hint.
type hint struct {
	Tenant string `json:"tenant"`
	RunID  string `json:"run_id"`
}

func (h hint) encode() []byte {
	b, err := json.Marshal(h)
	if err != nil {
		panic("bus: " + err.Error()) // two strings always encode
	}
	return b
}
