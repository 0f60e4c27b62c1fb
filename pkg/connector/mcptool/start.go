package mcptool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const methodDiscover = "server/discover"

// initialized is the newest version of the protocol that begins with initialize and without server/discover.
const initialized = "2025-11-25"

// patience is how long each part of a session's start may take.
type patience struct {
	probe   time.Duration // a server's answer to server/discover
	behind  time.Duration // the whole of a start whose server/discover had no good answer, before it is made anew without
	connect time.Duration // a start: a server that npx has to download first takes its time
}

var patient = patience{probe: 5 * time.Second, behind: 20 * time.Second, connect: time.Minute}

// whole bounds both starts together.
func (p patience) whole() time.Duration { return p.behind + p.connect }

// probe follows the first question of a session's start, server/discover, which servers of before 2026 do not know. Some
// refuse it, as they should; some say nothing, and some end. The SDK goes on to initialize after a refusal only, so silence
// is made one.
type probe struct {
	patience time.Duration
	met      encounter // over HTTP

	mu     sync.Mutex
	id     jsonrpc.ID
	asked  bool
	found  string // what came of it, our words; "" while nothing has
	knows  bool   // a good answer came, in time or not
	silent *time.Timer
}

const noAnswer = "no answer"

// sent begins the wait for an answer; late is called once if there is none.
func (p *probe) sent(id jsonrpc.ID, late func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id, p.asked, p.found = id, true, ""
	p.silent = time.AfterFunc(p.patience, func() {
		if p.note(fmt.Sprintf("no answer within %s", p.patience)) {
			late()
		}
	})
}

// note keeps what came of it, once.
func (p *probe) note(found string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found != "" {
		return false
	}
	p.found = found
	p.silent.Stop()
	return true
}

// answered takes an answer, if it is one to this question.
func (p *probe) answered(r *jsonrpc.Response) (ours bool) {
	p.mu.Lock()
	ours = p.asked && r.ID == p.id
	p.knows = p.knows || ours && r.Error == nil
	p.mu.Unlock()
	if !ours {
		return false
	}
	found := "an answer"
	if fault, ok := errors.AsType[*jsonrpc.Error](r.Error); ok {
		found = fmt.Sprintf("error %d", fault.Code)
	} else if r.Error != nil {
		found = noAnswer
	}
	p.note(found)
	return true
}

// outcome is what came of it, "" if that is not known, and whether it was a good answer.
func (p *probe) outcome() (found string, asked, knows bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent != nil {
		p.silent.Stop()
	}
	if status := p.met.status(); status != 0 && (p.found == "" || p.found == noAnswer) {
		return fmt.Sprintf("status %d", status), p.asked, p.knows
	}
	return p.found, p.asked, p.knows
}

var errSilent = errors.New("no answer to server/discover")

// ask writes server/discover. A server that does not answer has refused it.
func (w *wire) ask(ctx context.Context, r *jsonrpc.Request) error {
	ctx, giveUp := context.WithCancel(context.WithValue(ctx, encounterKey{}, &w.probe.met)) // at the latest with the start itself
	w.probe.sent(r.ID, func() {
		giveUp()
		select {
		case w.injected <- &jsonrpc.Response{ID: r.ID, Error: errSilent}:
		case <-w.gone:
		}
	})
	return w.write(ctx, r, nil)
}

// begin makes a session. A server that has been found not to know server/discover is not asked again; one that has not, and
// is no longer of use after the question, is started anew without it. Nothing of any call has left.
func (s *server) begin(ctx context.Context) (*session, error) {
	if s.legacy() {
		out, t := s.try(ctx, s.patience.connect, nil)
		if t.refused() {
			s.setLegacy(false) // it may be another version by now
		}
		return out, t.trouble()
	}
	p := &probe{patience: s.patience.probe}
	out, t := s.try(ctx, s.patience.behind, p)
	found, asked, knows := p.outcome()
	if out != nil {
		if out.InitializeResult().ProtocolVersion <= initialized && !knows {
			s.learn(found)
		}
		return out, nil
	}
	if !asked || t.unreached() {
		return nil, t.trouble()
	}
	var again *probe
	if knows {
		again = &probe{patience: s.patience.connect} // it only takes its time
	}
	if found == "" {
		found = t.ending()
	}
	out, t = s.try(ctx, s.patience.connect, again)
	if out != nil && again == nil {
		s.learn(found)
	}
	return out, t.trouble()
}

// learn remembers that the server does not know server/discover, and says so.
func (s *server) learn(found string) {
	s.setLegacy(true)
	s.mu.Lock()
	s.found = found
	s.mu.Unlock()
	s.desk.say(func(l *slog.Logger) {
		l.Info("an MCP server does not know server/discover: it gets initialize, and is not asked again", "server", s.name, "found", found)
	})
}

func (s *server) legacy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.old
}

func (s *server) setLegacy(old bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old = old
}

// try makes a session once and asks what the server offers; p is nil to begin with initialize. The attempt is there in any
// case.
func (s *server) try(ctx context.Context, within time.Duration, p *probe) (*session, *attempt) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	limit := time.AfterFunc(within, cancel)
	defer limit.Stop()
	t := &attempt{server: s, met: new(encounter)}
	ctx = context.WithValue(ctx, encounterKey{}, t.met)
	t.transport = &transport{serial: s.client == nil, probe: p}
	if t.transport.serial {
		t.transport.open = s.openStdio
	} else {
		t.transport.open = s.client.open(s.spec.URL)
	}
	out := &session{server: s, ended: make(chan struct{}), finished: make(chan struct{})}
	c := mcp.NewClient(&mcp.Implementation{Name: "agentrun", Version: "1"}, &mcp.ClientOptions{
		Capabilities:   &mcp.ClientCapabilities{},
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}, // a second round would be a second tools/call
		Logger:         slog.New(slog.DiscardHandler),
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			out.outdate()
		},
	})
	// The SDK's Connect can wait for an answer longer than ctx lives.
	stop := context.AfterFunc(ctx, func() {
		if w := t.transport.connected(); w != nil {
			w.sever()
		}
	})
	defer stop()
	options := &mcp.ClientSessionOptions{}
	if p == nil {
		options.ProtocolVersion = initialized
	}
	if out.ClientSession, t.err = c.Connect(ctx, t.transport, options); t.err != nil {
		t.tooLate = ctx.Err() != nil
		if w := t.transport.connected(); w != nil {
			t.wait()
			w.sever()
			_ = w.Close()
		}
		return nil, t
	}
	limit.Stop() // the list has its own
	out.wire = t.transport.connected()
	go func() {
		_ = out.Wait()
		close(out.ended)
		out.retire()
	}()
	listing, done := context.WithTimeout(ctx, s.patience.connect)
	defer done()
	out.readOffers(listing)
	return out, t
}
