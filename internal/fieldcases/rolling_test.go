package fieldcases

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

// A fleet of two executors and two reconcilers is moved from one build to another under load, process by process, and back
// again. Nothing is lost, nothing is done twice, and what the newer build wrote is still there.
func TestRollingUpgrade(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and restarts real processes for half a minute")
	}
	t.Parallel()
	this := thisBuild(t)
	t.Run("from the previous version", func(t *testing.T) {
		t.Parallel()
		previous, why := previousBuild(t)
		if why != "" {
			t.Skip(why + "; the next minor version stands for another build")
		}
		roll(t, previous, this)
	})
	t.Run("to the next minor version", func(t *testing.T) {
		t.Parallel()
		kept := roll(t, this, nextBuild(t))
		if kept.both < 3 || !kept.fleet {
			t.Errorf("%d records were written by both builds (the fleet's: %t): the test shows nothing", kept.both, kept.fleet)
		}
	})
}

// roll moves a fleet from one build to the other and back.
func roll(t *testing.T, from, to build) *kept {
	t.Helper()
	w := newWorld(t, 2*time.Second, tool{name: "read"},
		tool{name: "slow", write: true, window: 100 * time.Millisecond},  // in flight when a process ends
		tool{name: "lossy", write: true, window: 100 * time.Millisecond}, // done, and the reply is lost
		tool{name: "gone", write: true, window: 100 * time.Millisecond},  // not done, and the connection breaks
		tool{name: "flaky", write: true, window: 100 * time.Millisecond}, // refused at first
	)
	w.provider.script(func(c call) plan {
		p := plan{Commit: true, Delay: 20 * time.Millisecond}
		switch {
		case c.Tool == "slow":
			p.Delay = 200 * time.Millisecond
		case c.Nth > 1:
		case c.Tool == "lossy":
			p = plan{Commit: true, Drop: true}
		case c.Tool == "gone":
			p = plan{Drop: true}
		case c.Tool == "flaky":
			p = refuse(503)
		}
		return p
	})
	fleet := []*process{
		w.command(from, "reconciler", "r1"), w.command(from, "reconciler", "r2"),
		w.command(from, "executor", "e1", "--drain-timeout", "2s"), w.command(from, "executor", "e2", "--drain-timeout", "2s"),
	}
	for _, p := range fleet {
		p.start()
	}
	w.follow()
	kept := w.keeps()
	l := &load{w: w, stop: make(chan struct{}), ended: make(chan struct{})}
	go l.run()
	l.more(stretch)
	// Reconcilers first, then executors; back in the other order.
	for i, p := range fleet {
		replace(p, to, i == 3)
		l.more(stretch)
	}
	for i, p := range slices.Backward(fleet) {
		replace(p, from, i == 2)
		l.more(stretch)
	}
	close(l.stop)
	<-l.ended
	l.finish()
	l.check()
	kept.check(w)
	t.Logf("%d runs; %d were written by both builds", len(l.runs), kept.both)
	report, err := app.Audit(t.Context(), app.Connection{NATS: w.url}, "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Found {
		t.Errorf("audit: %s", f)
	}
	for _, p := range fleet {
		if s := p.log.String(); strings.Contains(s, "panic:") {
			t.Errorf("%s panicked", p.role)
		}
	}
	return kept
}

// replace ends a process, as a supervisor does or by kill -9, and starts it from another build on what it left.
func replace(p *process, b build, kill bool) {
	p.t.Helper()
	if kill {
		p.kill()
	} else {
		p.stop()
	}
	p.binary = b.path(p.role)
	p.start()
}

// load begins runs, so many at once, until it is stopped. Beside them are runs that stay open for its whole time and get a
// step in each stretch of it, so that every build works on them.
type load struct {
	w           *world
	stop, ended chan struct{}
	stretches   int
	open        []string

	mu   sync.Mutex
	runs []string
	done int // runs at the front of the list that have ended
}

const (
	busy      = 8  // runs at once
	stretch   = 10 // runs that begin and end between two changes of the fleet
	openRuns  = 2  // begun in each stretch
	loadTools = 5
)

func (l *load) run() {
	defer close(l.ended)
	tools := [loadTools]string{"read", "slow", "lossy", "gone", "flaky"}
	for n := 0; ; n++ {
		for l.unfinished() >= busy {
			select {
			case <-l.w.changed.wait():
			case <-l.stop:
				return
			case <-time.After(10 * time.Millisecond): // what is signalled between the two looks is missed
			}
		}
		select {
		case <-l.stop:
			return
		default:
		}
		id := fmt.Sprintf("run%d", n)
		l.begun(id)
		l.w.publish(id, nil, do("a", tools[n%loadTools]), do("b", tools[n/loadTools%loadTools]))
	}
}

func (l *load) begun(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs = append(l.runs, id)
}

func (l *load) unfinished() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for i := l.done; i < len(l.runs); i++ {
		if l.w.end(l.runs[i], 1) == nil {
			n++
		} else if i == l.done {
			l.done++
		}
	}
	return n
}

// more lets the fleet work until n more runs have begun and ended, and every open run has done a further step.
func (l *load) more(n int) {
	l.w.t.Helper()
	l.stretches++
	for i := range openRuns {
		l.open = append(l.open, fmt.Sprintf("open%d-%d", l.stretches, i))
	}
	step := fmt.Sprintf("s%d", l.stretches)
	for i, id := range l.open {
		l.w.publish(id, map[string]any{"more": true}, do(step, []string{"lossy", "flaky"}[i%2]))
	}
	l.mu.Lock()
	from := len(l.runs)
	l.mu.Unlock()
	l.w.until(fmt.Sprintf("%d more runs end", n), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.runs) < from+n {
			return false
		}
		for _, id := range l.runs[from : from+n] {
			if l.w.end(id, 1) == nil {
				return false
			}
		}
		return true
	})
	for _, id := range l.open {
		l.w.mustStep(id, step, envelope.OK)
	}
}

// finish closes the open runs and waits for every end.
func (l *load) finish() {
	l.w.t.Helper()
	for _, id := range l.open {
		l.w.publish(id, map[string]any{"more": false}, do("last", "read"))
	}
	l.runs = append(l.runs, l.open...)
	for _, id := range l.runs {
		l.w.until("run "+id+" ends", func() bool { return l.w.end(id, 1) != nil })
	}
	l.w.idle()
}

// check: every run is ok, once, and every write is in the ledger, once.
func (l *load) check() {
	t := l.w.t
	t.Helper()
	l.w.balanced()
	for _, id := range l.runs {
		if ends := l.w.outcomes(id, envelope.RunScope); len(ends) != 1 || ends[0].Outcome != envelope.OK {
			t.Errorf("run %s has %d ends, the first is %s", id, len(ends), ends[0].Outcome)
		}
		r := l.w.record(id)
		if r == nil {
			t.Errorf("run %s has no record", id)
			continue
		}
		for _, s := range r.Steps {
			if n := len(l.w.provider.rowsOf(ref(id, s.Name))); s.Effect == envelope.Write && n != 1 {
				t.Errorf("%s is in the ledger %d times", ref(id, s.Name), n)
			}
		}
	}
	if left := l.w.letters(); len(left) > 0 {
		t.Errorf("letters of %v", left)
	}
}

// kept follows the records as they are stored, to see what a newer build writes and whether it stays.
type kept struct {
	mu    sync.Mutex
	seen  map[string]marks // by subject, the most that any revision had
	last  map[string]marks
	both  int  // records with lines of the history from both builds
	fleet bool // the reconcilers' record had the newer build's member
}

// marks are what only the next minor version writes.
type marks struct{ region, lanes, zones, events int }

func (w *world) keeps() *kept {
	w.t.Helper()
	k := &kept{seen: map[string]marks{}, last: map[string]marks{}}
	cons, err := w.js.OrderedConsumer(w.t.Context(), topology.RunsStream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		w.t.Fatal(err)
	}
	follow, err := cons.Consume(func(m jetstream.Msg) { k.take(m.Subject(), m.Data()) })
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(follow.Stop)
	return k
}

func (k *kept) take(subject string, data []byte) {
	var r struct {
		Region string `json:"region"`
		Steps  []struct {
			Lane *struct{ Name string } `json:"lane"`
		} `json:"steps"`
		History []struct {
			Zone string `json:"zone"`
		} `json:"history"`
	}
	if json.Unmarshal(data, &r) != nil {
		return // the current state is checked by the audit
	}
	m := marks{events: len(r.History)}
	if r.Region != "" {
		m.region = 1
	}
	for _, s := range r.Steps {
		if s.Lane != nil && s.Lane.Name == "fast" {
			m.lanes++
		}
	}
	for _, e := range r.History {
		if e.Zone != "" {
			m.zones++
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last[subject] = m
	s := k.seen[subject]
	k.seen[subject] = marks{max(s.region, m.region), max(s.lanes, m.lanes), max(s.zones, m.zones), m.events}
}

// check waits until it has seen the last revision of every record and compares.
func (k *kept) check(w *world) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	stream, err := w.js.Stream(ctx, topology.RunsStream)
	if err != nil {
		w.t.Fatal(err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		w.t.Fatal(err)
	}
	bustest.Eventually(w.t, "every record was read", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.last) >= len(info.State.Subjects)
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	for subject, most := range k.seen {
		last := k.last[subject]
		if last.region < most.region || last.lanes < most.lanes || last.zones < most.zones {
			w.t.Errorf("%s had %+v and has %+v: an older build has lost members of a newer one", subject, most, last)
		}
		if last.region+last.lanes > 0 && last.zones > 0 && last.zones < last.events {
			k.both++
		}
		if strings.HasSuffix(subject, "_fleet.reconciler") && most.region > 0 {
			k.fleet = true
		}
	}
}
