package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// Letter is a dead letter as stored; the owner of its meaning is the run's record.
type Letter struct {
	Subject              string
	Tenant, Owner, RunID string
	Data                 []byte
	Seq                  uint64
	Time                 time.Time
	Headers              map[string][]string
}

// Letters is the stream of open dead letters.
type Letters struct{ conn *Conn }

// Letters returns the stream of open dead letters.
func (c *Conn) Letters() Letters { return Letters{c} }

// Put stores a letter at subject (see LetterSubject) if expect is the subject's last sequence, 0 for none. The same
// rules and errors as Runs.Save. A letter that exists can be replaced even when the stream is full.
func (l Letters) Put(ctx context.Context, subject string, data []byte, headers map[string][]string, expect uint64) (uint64, error) {
	h := make(nats.Header, len(headers)+1)
	maps.Copy(h, headers)
	h[headerExpect] = []string{strconv.FormatUint(expect, 10)}
	var seq uint64
	err := ErrNotLiteral
	if literalSubject(subject) {
		seq, err = l.conn.compareAndSet(ctx, LettersStream, &nats.Msg{Subject: subject, Header: h, Data: data}, expect)
	}
	if err != nil {
		return 0, fmt.Errorf("bus: put letter %s at %d: %w", subject, expect, err)
	}
	return seq, nil
}

// Get reads a letter at the leader; ErrNotFound if there is none.
func (l Letters) Get(ctx context.Context, subject string) (Letter, error) {
	m, err := l.conn.last(ctx, LettersStream, subject)
	if err != nil {
		return Letter{}, fmt.Errorf("bus: get letter %s: %w", subject, err)
	}
	return letterOf(m.Subject, m.Seq, m.Time, m.Header, m.Data), nil
}

// List calls fn with each letter that matches filter (a subject with wildcards, for example
// LetterSubject("acme", "*", "*")), oldest first, until fn returns false. Each is read at the leader, one after
// another.
func (l Letters) List(ctx context.Context, filter string, fn func(Letter) bool) error {
	for seq := uint64(1); ; {
		m, err := l.conn.get(ctx, LettersStream, getRequest{Seq: seq, NextBySubject: filter})
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("bus: list letters %s: %w", filter, err)
		}
		if !fn(letterOf(m.Subject, m.Seq, m.Time, m.Header, m.Data)) {
			return nil
		}
		seq = m.Seq + 1
	}
}

// Subjects returns the subjects of all letters that match filter: what is not in it has been removed. Removals are not
// seen by a watch.
func (l Letters) Subjects(ctx context.Context, filter string) ([]string, error) {
	var subjects []string
	for {
		var reply struct {
			Total int `json:"total"`
			State struct {
				Subjects map[string]uint64 `json:"subjects"`
			} `json:"state"`
		}
		ask := struct {
			Filter string `json:"subjects_filter"`
			Offset int    `json:"offset"`
		}{filter, len(subjects)}
		if err := l.conn.api(ctx, "STREAM.INFO."+LettersStream, ask, &reply); err != nil {
			return nil, fmt.Errorf("bus: letters of %s: %w", filter, err)
		}
		for s := range reply.State.Subjects {
			subjects = append(subjects, s)
		}
		if len(reply.State.Subjects) == 0 || len(subjects) >= reply.Total {
			return subjects, nil
		}
	}
}

// Count is the number of letters that match filter.
func (l Letters) Count(ctx context.Context, filter string) (int, error) {
	subjects, err := l.Subjects(ctx, filter)
	return len(subjects), err
}

// Delete removes the letter at seq; ErrNotFound if it is gone, or was replaced.
func (l Letters) Delete(ctx context.Context, seq uint64) error {
	if err := l.conn.deleteMessage(ctx, LettersStream, seq); err != nil {
		return fmt.Errorf("bus: delete letter at %d: %w", seq, err)
	}
	return nil
}

func letterOf(subject string, seq uint64, at time.Time, h nats.Header, data []byte) Letter {
	out := Letter{Subject: subject, Data: data, Seq: seq, Time: at, Headers: h}
	out.Tenant, out.Owner, out.RunID, _ = ParseLetterSubject(subject)
	return out
}

// Alert publishes an alert and waits for its acknowledgement. msgID lets the server drop a repetition within its
// window; nothing depends on it, and an alert may come twice.
func (c *Conn) Alert(ctx context.Context, subject string, data []byte, msgID string) error {
	if !literalSubject(subject) {
		return fmt.Errorf("bus: publish alert %s: %w", subject, ErrNotLiteral)
	}
	msg := &nats.Msg{Subject: subject, Data: data}
	if msgID != "" {
		msg.Header = nats.Header{nats.MsgIdHdr: {msgID}}
	}
	p := c.publish(msg)
	defer p.close()
	_, refused, err := p.settle(ctx)
	if err == nil && refused != nil {
		err = refused.err()
	}
	if err != nil {
		return fmt.Errorf("bus: publish alert %s: %w", subject, err)
	}
	return nil
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
