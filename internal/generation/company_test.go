package generation

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
)

var made = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// air is where words go; lose drops them.
type air struct {
	mu        sync.Mutex
	listeners []*Keeper
	lose      func(from, to *Keeper) bool
}

// loses says what is dropped from now on.
func (a *air) loses(lose func(from, to *Keeper) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lose = lose
}

// fake is a journal and a store that remember nothing but looks that were asked for.
type fake struct {
	mu     sync.Mutex
	others []byte
	looks  int
}

func (f *fake) Known() (port.Known, error) { return port.Known{Created: made, Seen: 100}, nil }
func (f *fake) Adopt(port.Known) error     { return nil }
func (f *fake) Saw(uint64)                 {}
func (f *fake) Joined(uint64, time.Time)   {}

func (f *fake) Met() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.others, nil
}

func (f *fake) Meet(others []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.others = others
}

func (f *fake) Check() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
}

func (f *fake) looked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.looks
}

func (f *fake) LoadFleet(context.Context, string) ([]byte, uint64, error) { return nil, 0, nil }
func (f *fake) FleetNames(context.Context) ([]string, error)              { return nil, nil }
func (f *fake) SaveFleet(context.Context, string, []byte, port.Header, uint64) (uint64, error) {
	return 1, nil
}

// join makes an executor that has seen so much; it talks until the test ends.
func (a *air) join(t *testing.T, id string, seen uint64, f *fake) *Keeper {
	t.Helper()
	var k *Keeper
	k, err := New(Config{
		ID: id, Store: f, Journal: f, Log: slog.New(slog.DiscardHandler), Retention: time.Hour, Member: Member{Journal: id, ID: id, Host: "h", Dir: "/" + id},
		Now: func() envelope.Time { return envelope.TimeOf(time.Now()) }, Seen: func() uint64 { return seen },
		Tell: func(data []byte) {
			a.mu.Lock()
			reached := slices.DeleteFunc(slices.Clone(a.listeners), func(to *Keeper) bool { return a.lose != nil && a.lose(k, to) })
			a.mu.Unlock()
			for _, to := range reached {
				to.Told(data)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	a.listeners = append(a.listeners, k)
	a.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go k.Talk(ctx)
	return k
}

func look(last uint64) Look { return Look{Asked: time.Now(), Created: made, Last: last} }

// met is a fleet of three that have heard one another on the server "before".
func met(t *testing.T) (a *air, k [3]*Keeper, f [3]*fake) {
	a = &air{}
	for i, id := range []string{"e1", "e2", "e3"} {
		f[i] = &fake{}
		k[i] = a.join(t, id, 100, f[i])
		k[i].Looked(look(100))
	}
	time.Sleep(time.Second)
	for _, k := range k {
		if !k.Together("before") {
			time.Sleep(time.Second)
		}
		if !k.Together("before") {
			t.Fatalf("%s waits", k.ID)
		}
	}
	return a, k, f
}

// A new server: all have answered within a moment.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, k, _ := met(t)
		for _, k := range k {
			if k.Together("after") {
				t.Errorf("%s waits for nobody", k.ID)
			}
		}
		time.Sleep(5 * answerPause)
		for _, k := range k {
			if !k.Together("after") {
				t.Errorf("%s still waits", k.ID)
			}
		}
	})
}

// One that is not back yet is waited for, and no longer than Silence; from then on it is gone. Words that are lost on the way
// are said again.
func TestTogetherWithoutOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, k, _ := met(t)
		lost := 0
		a.loses(func(from, to *Keeper) bool {
			if from == k[1] && to == k[0] && lost < 3 {
				lost++
				return true
			}
			return from == k[2] && to == k[0]
		})
		k[0].Together("after")
		time.Sleep(Silence - time.Second)
		if k[0].Together("after") {
			t.Fatal("it does not wait for the third")
		}
		k[0].mu.Lock()
		silent := k[0].silent()
		k[0].mu.Unlock()
		if len(silent) != 1 || silent[0].ID != "e3" || lost != 3 {
			t.Fatalf("waits for %v, %d words were lost", silent, lost)
		}
		time.Sleep(2 * time.Second)
		if !k[0].Together("after") {
			t.Fatal("it waits for ever")
		}
		k[0].Together("later")
		time.Sleep(time.Second)
		if !k[0].Together("later") {
			t.Error("it waits again for one that was gone already")
		}
	})
}

// Who goes in order, or is not heard while this process hears itself, is waited for no more; while this process does not hear
// itself either, nobody is gone.
func TestWhoIsWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		lose   func(k [3]*Keeper) func(from, to *Keeper) bool
		depart bool
		alive  bool
	}{
		"gone in order": {func(k [3]*Keeper) func(from, to *Keeper) bool {
			return func(from, _ *Keeper) bool { return from == k[2] }
		}, true, false},
		"silent": {func(k [3]*Keeper) func(from, to *Keeper) bool {
			return func(from, _ *Keeper) bool { return from == k[2] }
		}, false, false},
		"nobody can be heard": {func([3]*Keeper) func(from, to *Keeper) bool { return func(_, _ *Keeper) bool { return true } }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, k, f := met(t)
				if c.depart {
					k[2].Depart()
				}
				a.loses(c.lose(k))
				if !c.depart {
					time.Sleep((missedMost + 2) * beatEvery)
				}
				var peers []peer
				others, _ := f[0].Met()
				if err := json.Unmarshal(others, &peers); err != nil {
					t.Fatal(err)
				}
				i := slices.IndexFunc(peers, func(p peer) bool { return p.ID == "e3" })
				if i < 0 || peers[i].Alive != c.alive {
					t.Errorf("remembered: %s", others)
				}
			})
		})
	}
}

// After a restart of all, e1 remembers that e3 was there, and waits for it; what e3 has seen shows that the store has gone
// back, and the new generation waits for e3's journal, which the copy does not know.
func TestOthersHaveSeenMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		remembered, err := json.Marshal([]peer{{Member: Member{Journal: "e3", ID: "e3", Host: "h", Dir: "/e3"}, Alive: true}})
		if err != nil {
			t.Fatal(err)
		}
		a, f := &air{}, &fake{others: remembered}
		e1 := a.join(t, "e1", 100, f)
		e1.Together("server")
		e1.Looked(look(100))
		time.Sleep(time.Second)
		if e1.Together("server") {
			t.Fatal("e1 does not wait for e3")
		}
		a.join(t, "e3", 104, &fake{})
		time.Sleep(time.Second)
		if e1.Together("server") || f.looked() == 0 {
			t.Fatalf("e1 believes the store that it has looked at, after %d more looks", f.looked())
		}
		e1.Looked(look(100))
		e1.mu.Lock()
		cause := e1.cause
		e1.mu.Unlock()
		if cause == "" {
			t.Fatal("e1 sees no loss")
		}
		s, err := e1.begin(t.Context(), cause)
		if err != nil || !s.awaits("e3") || !s.awaits("e1") {
			t.Errorf("the new generation awaits %v (%v)", s.Awaits, err)
		}
	})
}

// A store that shows what the others have seen is one to work with.
func TestOthersHaveSeenMoreOfTheSameStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, k, _ := met(t)
		a.join(t, "e4", 104, &fake{})
		time.Sleep(time.Second)
		k[0].Together("after")
		time.Sleep(time.Second)
		if k[0].Together("after") {
			t.Fatal("it has not looked again")
		}
		k[0].Looked(look(104))
		if !k[0].Together("after") {
			t.Error("it waits for nothing")
		}
	})
}

// An executor that has adopted a generation and died before it could say so is awaited: it restores again, and says so.
func TestAwaitedByAGenerationThatIsKnown(t *testing.T) {
	s := State{Schema: StateSchema, Awaits: []Member{{Journal: "e1"}}}
	data, err := s.encode()
	if err != nil {
		t.Fatal(err)
	}
	restored := 0
	synctest.Test(t, func(t *testing.T) {
		e1 := (&air{}).join(t, "e1", 100, &fake{})
		e1.Ready = quiet{}
		e1.Restore = func(context.Context) error {
			restored++
			return nil
		}
		l := look(100)
		l.State = data
		e1.Looked(l)
		if again, err := e1.step(t.Context()); err != nil || !again {
			t.Errorf("again %v, %v", again, err)
		}
	})
	if restored != 1 {
		t.Errorf("restored %d times", restored)
	}
}

type quiet struct{}

func (quiet) Block(string, string) {}
func (quiet) Clear(string)         {}
