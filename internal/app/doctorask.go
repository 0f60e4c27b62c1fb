package app

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// inbox reports whether replies can come to this user. Where they cannot, every other question would wait for its answer in
// vain and be given the remedy of another fault.
func (d *doctor) inbox(ctx context.Context, nc *nats.Conn) bool {
	subject := nc.NewInbox()
	err := d.ask(ctx, subject, func(ctx context.Context) error {
		sub, err := nc.SubscribeSync(subject)
		if err != nil {
			return err
		}
		defer func() { _ = sub.Unsubscribe() }()
		if err := nc.FlushWithContext(ctx); err != nil { // a refusal comes before the answer to a ping
			return err
		}
		if last := nc.LastError(); last != nil && strings.Contains(last.Error(), subject) {
			return last
		}
		return nil
	})
	if err != nil {
		d.find("inbox", Ill, "give the inbox that this user has, for example --inbox-prefix _INBOX_executor (deploy/nats/accounts.conf), or let it subscribe to "+d.Inbox+".>",
			"no reply can come, and nothing else can be asked: %v", err)
	}
	return err == nil
}

// ask puts a question on a subject. It ends, and its error says why, as soon as the server refuses the subject: no answer
// will come.
func (d *doctor) ask(ctx context.Context, subject string, question func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	d.mu.Lock()
	d.asked, d.giveUp = subject, giveUp
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.asked, d.giveUp = "", nil
		d.mu.Unlock()
		giveUp(nil)
	}()
	err := question(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// stream asks for a stream's settings and state.
func (d *doctor) stream(ctx context.Context, js jetstream.JetStream, name string) (s jetstream.Stream, err error) {
	err = d.ask(ctx, d.API().Subject("STREAM.INFO."+name), func(ctx context.Context) (err error) {
		s, err = js.Stream(ctx, name)
		return err
	})
	return s, err
}

// request is a request that ends as soon as it is refused.
func (d *doctor) request(ctx context.Context, nc *nats.Conn, subject string, data []byte) (m *nats.Msg, err error) {
	err = d.ask(ctx, subject, func(ctx context.Context) (err error) {
		m, err = nc.RequestWithContext(ctx, subject, data)
		return err
	})
	return m, err
}

func (d *doctor) told(_ *nats.Conn, _ *nats.Subscription, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused = append(d.refused, err.Error())
	if d.asked != "" && strings.Contains(err.Error(), `"`+d.asked+`"`) {
		d.giveUp(err)
	}
}
