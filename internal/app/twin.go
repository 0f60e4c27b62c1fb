package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/topology"
)

// A journal has one owner: the lock on its file keeps a second process out on one machine. A machine or a disk that was
// cloned has a copy of the file, and the process on it would be taken for another start of the same executor. So each
// executor says on a hint subject of its journal who it is: it asks before it does anything else, and again regularly. Who
// dies takes its subscription along, so that a start after a crash finds nobody and need not wait.
const (
	twinHint  = "_journal."
	twinEvery = 2 * time.Second // how long two processes that could not hear each other at their start may go on
	// twinWait is how long a start waits for an answer where the server still has the subscription of a machine that was lost.
	twinWait = time.Second
)

// owner is a process on a journal.
type owner struct {
	Nonce  string    `json:"nonce"` // of the process
	Holder string    `json:"holder"`
	ID     string    `json:"id"`
	Host   string    `json:"host"`
	PID    int       `json:"pid"`
	Dir    string    `json:"dir"`
	Since  time.Time `json:"since"` // by its own clock
	Works  bool      `json:"works"` // its start is over
}

func (o owner) String() string {
	return fmt.Sprintf("%s on %s (process %d, %s, holder %s, since %s)", o.ID, o.Host, o.PID, o.Dir, o.Holder, o.Since.UTC().Format(time.RFC3339))
}

// before reports whether o was there first, so that the other one stops. Both come to the same answer.
func (o owner) before(other owner) bool {
	if o.Works != other.Works {
		return o.Works
	}
	if !o.Since.Equal(other.Since) {
		return o.Since.Before(other.Since)
	}
	return o.Nonce < other.Nonce
}

// errTwin: another process works on a copy of this journal.
var errTwin = errors.New("another executor works on a copy of this journal")

func twinError(journal string, first, second owner) error {
	return fmt.Errorf("%w: %s has journal %s, and so has %s, which stops: a machine or a disk was copied. Give the copy an empty --data directory",
		errTwin, first, journal, second)
}

// twins watches for other processes on copies of a journal.
type twins struct {
	nc      *nats.Conn
	journal string
	log     *slog.Logger
	found   func(error) // told, at most once, that this process must stop

	mu   sync.Mutex
	me   owner
	told bool
}

// alone makes sure that no other process is on a copy of the journal, and goes on watching until ctx ends; found is told
// if one appears that was there first.
func alone(ctx context.Context, conn *streams.Conn, j *journal.Journal, id string, log *slog.Logger, found func(error)) (*twins, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(filepath.Dir(j.Path()))
	if err != nil {
		return nil, err
	}
	t := &twins{nc: conn.NATS(), journal: journalID(j), log: log, found: found, me: owner{
		Nonce: uuid.NewString(), Holder: j.Holder(), ID: id, Host: host, PID: os.Getpid(), Dir: dir, Since: time.Now(),
	}}
	if err := t.ask(ctx); err != nil {
		return nil, err
	}
	sub, err := t.nc.Subscribe(t.subject(), t.heard)
	if err != nil {
		return nil, fmt.Errorf("watching for copies of the journal: %w", err)
	}
	go func() {
		defer func() { _ = sub.Unsubscribe() }()
		for tick := time.NewTicker(twinEvery); ; {
			t.say(t.subject(), "")
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	return t, nil
}

func (t *twins) subject() string { return topology.HintSubject(twinHint + t.journal) }

// works says that the start is over: from now on a process that starts is the second.
func (t *twins) works() {
	t.mu.Lock()
	t.me.Works = true
	t.mu.Unlock()
}

func (t *twins) self() owner {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.me
}

// say tells who this process is.
func (t *twins) say(subject, reply string) {
	if data, err := json.Marshal(t.self()); err == nil {
		_ = t.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: data}) // without a connection nobody hears
	}
}

// ask asks whether anybody has this journal. The server answers for nobody.
func (t *twins) ask(ctx context.Context) error {
	answer := t.subject() + "." + t.me.Nonce
	sub, err := t.nc.SubscribeSync(answer)
	if err != nil {
		return fmt.Errorf("asking for copies of the journal: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	t.say(t.subject(), answer)
	ctx, cancel := context.WithTimeout(ctx, twinWait)
	defer cancel()
	m, err := sub.NextMsgWithContext(ctx)
	if err != nil || len(m.Data) == 0 {
		return nil // nobody, or nobody who lives
	}
	var other owner
	if json.Unmarshal(m.Data, &other) != nil || other.Nonce == t.me.Nonce {
		return nil
	}
	return twinError(t.journal, other, t.me)
}

// heard takes in what another process says of itself.
func (t *twins) heard(m *nats.Msg) {
	var other owner
	if json.Unmarshal(m.Data, &other) != nil || other.Nonce == "" {
		return
	}
	me := t.self()
	if other.Nonce == me.Nonce {
		return
	}
	if m.Reply != "" {
		t.say(m.Reply, "")
		return // it asks, and will not start
	}
	if !other.before(me) {
		t.log.Error("another executor has a copy of this journal and must stop", "other", other.String())
		t.say(t.subject(), "")
		return
	}
	t.mu.Lock()
	told := t.told
	t.told = true
	t.mu.Unlock()
	if !told {
		t.found(twinError(t.journal, other, me))
	}
}
