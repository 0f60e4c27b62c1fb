package generation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/envelope"
)

// Journal is what an executor remembers on disk.
type Journal interface {
	Known() (port.Known, error)
	// Adopt is on disk when it returns nil.
	Adopt(port.Known) error
	// Saw and Joined are on disk soon, within about 0.1 s.
	Saw(seq uint64)
	Joined(revision uint64, at time.Time)
	// Met returns what Meet was given: the other executors of the fleet. It is on disk soon, too.
	Met() ([]byte, error)
	Meet(others []byte)
}

// Store is where the fleet agrees. All methods are safe for concurrent use.
type Store interface {
	port.Fleet
	// FleetNames are the names of all records of the fleet.
	FleetNames(ctx context.Context) ([]string, error)
	// Check asks for a look at the streams soon.
	Check()
}

// Look is what a look at the streams has found.
type Look struct {
	Asked   time.Time // when it began
	Created time.Time // of AGENTRUN_RUNS
	Last    uint64    // its last sequence
	Losses  int       // how often it was found to have lost what was in it, since the process began
	Loss    string    // the latest of them, in words
	Unfit   string    // why nothing may be restored into it now; empty: it keeps what it is given
	State   []byte    // the record of the present generation
	Member  uint64    // revision of the executor's own record
}

// Ready says whether the process can do its work.
type Ready interface {
	Block(name, reason string)
	Clear(name string)
}

// Config is what a keeper is made of.
type Config struct {
	ID        string
	Store     Store
	Ready     Ready
	Now       func() envelope.Time // the server's
	Log       *slog.Logger
	Retention time.Duration // how long a journal keeps what it knows
	Lost      func(bool)    // told when records are known to be lost, and when all is restored
	Seen      func() uint64 // the highest sequence that was seen
	Tell      func([]byte)  // tells all processes of the fleet a word, this one included; nil: it works alone

	// Of an executor only:
	Journal Journal                         // nil: a reconciler, which remembers in memory
	Member  Member                          // who it is
	Restore func(ctx context.Context) error // brings all that the journal knows into the store
}

const (
	readyName   = "store"
	joinEvery   = 5 * time.Second // how old the executor's own record may be beside what it has sent
	waitEvery   = time.Second     // between looks while others are waited for
	errorPause  = 250 * time.Millisecond
	refreshPart = 4 // of the retention, after which the own record is written anew in any case
)

// Keeper knows for one process whether the store is the one that the fleet has agreed on. Safe for concurrent use.
type Keeper struct {
	Config
	kick chan struct{}

	mu     sync.Mutex
	known  port.Known
	look   Look
	looked bool      // look is newer than everything that was written here
	wrote  time.Time // a look that began before it says nothing about our own records
	losses int       // of look.Losses, those that were answered by a generation
	cause  string    // what was found here and is not answered by a generation yet
	unfit  bool      // the stream forgot what it was given, and what it has lost is not answered yet
	token  string    // of the store that is agreed on
	agreed bool

	company

	dirty  bool      // something was sent since the own record was written
	joined time.Time // when the own record was written
	told   string    // the last text shown
}

// New makes a keeper that remembers what the journal does.
func New(c Config) (*Keeper, error) {
	k := &Keeper{Config: c, kick: make(chan struct{}, 1)}
	var others []byte
	if c.Lost == nil {
		k.Lost = func(bool) {}
	}
	if c.Journal != nil {
		known, err := c.Journal.Known()
		if err != nil {
			return nil, fmt.Errorf("what the journal knows of the store: %w", err)
		}
		k.known = known
		if others, err = c.Journal.Met(); err != nil {
			return nil, fmt.Errorf("whom the journal knows: %w", err)
		}
	}
	k.company = newCompany(others)
	return k, nil
}

// Current is a token of the store; ok is false while it is not known to be the one that the fleet has agreed on. A new
// generation has another token.
func (k *Keeper) Current() (token string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.token, k.agreed
}

// Vanished says that a record is gone that this process knows was there: the store has lost it.
func (k *Keeper) Vanished(what string) {
	k.mu.Lock()
	k.suspect(what)
	k.mu.Unlock()
	k.poke()
}

// Sent says that the executor has sent something: its own record is to be written anew soon, so that a store which does
// not have it is seen to have gone back.
func (k *Keeper) Sent() {
	k.mu.Lock()
	k.dirty = true
	k.mu.Unlock()
}

func (k *Keeper) poke() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// suspect notes evidence of a loss; k.mu is held.
func (k *Keeper) suspect(cause string) {
	k.agreed = false
	if k.cause == "" {
		k.cause = cause
	}
}

// Looked takes in what a look has found. It does not wait.
func (k *Keeper) Looked(l Look) {
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.poke()
	if l.Losses > k.losses {
		k.losses = l.Losses
		k.suspect(l.Loss)
	}
	if l.Asked.Before(k.wrote) {
		return
	}
	k.look, k.looked = l, true
	defer k.gathered()
	switch {
	case l.Unfit != "":
		k.agreed, k.unfit = false, true
	case k.unfit:
		k.unfit = false
		k.suspect("AGENTRUN_RUNS was changed by hand and may have forgotten records")
	}
	if k.known.Created.IsZero() {
		return
	}
	switch {
	case !l.Created.Equal(k.known.Created):
		k.suspect("AGENTRUN_RUNS was made anew")
	case l.Member < k.known.Member && !k.expired():
		k.suspect("the record of this executor in AGENTRUN_RUNS is older than the one that it has written, or gone")
	case l.Last < k.heard && !l.Asked.After(k.heardAt):
		k.Store.Check()
	case l.Last < k.heard:
		k.suspect(fmt.Sprintf("AGENTRUN_RUNS has gone back: it ends at sequence %d, and others had seen %d", l.Last, k.heard))
	}
	if s, err := decodeState(l.State); err != nil || s.Generation != k.known.Generation || len(s.Missing()) > 0 {
		k.agreed = false
	}
}

// expired: the executor was away for so long that its own record was forgotten in order; k.mu is held.
func (k *Keeper) expired() bool {
	return k.look.Member == 0 && time.Since(k.known.Joined) > k.Retention
}

// Run answers what the looks find until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.kick:
		}
		for {
			again, err := k.step(ctx)
			if ctx.Err() != nil {
				return
			}
			wait := time.Duration(0)
			switch {
			case errors.Is(err, port.ErrConflict):
				wait = 10 * time.Millisecond
			case err != nil:
				k.Log.Warn("the store's generation is not settled yet", "error", err)
				wait = errorPause
			case !again:
			}
			if err == nil && !again {
				break
			}
			if !pause.For(ctx, wait) {
				return
			}
		}
	}
}

// RestoreNow restores what the journal knows, whether or not the store seems to have lost something, and says so in the
// present generation. It needs one look, which must have been taken in.
func (k *Keeper) RestoreNow(ctx context.Context) error {
	for {
		k.mu.Lock()
		look, looked, cause := k.look, k.looked, k.cause
		k.mu.Unlock()
		if !looked {
			select {
			case <-k.kick:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if look.Unfit != "" {
			return errors.New(look.Unfit)
		}
		s, err := decodeState(look.State)
		if err == nil && cause != "" {
			s, err = k.begin(ctx, cause)
		}
		if err == nil {
			err = k.restore(ctx, look, s, cause)
		}
		if !errors.Is(err, port.ErrConflict) {
			return err
		}
	}
}

// step does the next thing that is to be done; again asks to be called once more.
func (k *Keeper) step(ctx context.Context) (again bool, err error) {
	k.mu.Lock()
	look, looked, cause, known := k.look, k.looked, k.cause, k.known
	k.mu.Unlock()
	if !looked {
		return false, nil
	}
	if look.Unfit != "" {
		k.block(look.Unfit)
		return false, nil // the stream would forget what is restored into it
	}
	s, err := decodeState(look.State)
	if err != nil {
		k.block(err.Error())
		return false, nil
	}
	if cause != "" {
		k.block(cause + "; what the journals know is being restored")
		k.Lost(true)
		if s, err = k.begin(ctx, cause); err != nil {
			return false, err
		}
	}
	switch {
	case known.Created.IsZero() && cause == "":
		if err := k.adopt(look, s); err != nil {
			return false, err
		}
	case cause != "" || s.Generation != known.Generation || s.awaits(k.Config.Member.Journal):
		// It is awaited by a generation that it knows if it died between the two, or if another remembered it later.
		if err := k.restore(ctx, look, s, cause); err != nil {
			return false, err
		}
		return true, nil
	}
	if err := k.join(ctx, look); err != nil {
		return false, err
	}
	missing := s.Missing()
	if k.Journal != nil {
		for _, m := range missing {
			if k.replaces(m) {
				// Awaited by a copy of the store that does not know yet who is in its place.
				return true, Confirm(ctx, k.Store, m.Journal, k.wroteNow)
			}
		}
	}
	if len(missing) > 0 {
		k.block(missingText(s.Cause, missing))
		k.Lost(true)
		time.AfterFunc(waitEvery, k.Store.Check)
		return false, nil
	}
	k.agree(look, s)
	return false, nil
}

// agree says that the store is the one that the fleet has agreed on, unless something else was found meanwhile.
func (k *Keeper) agree(look Look, s State) {
	k.mu.Lock()
	if k.cause != "" || !k.look.Asked.Equal(look.Asked) || k.known.Generation != s.Generation {
		k.mu.Unlock()
		return
	}
	if k.Journal != nil {
		k.Journal.Saw(look.Last)
	}
	was := k.agreed
	k.agreed, k.token = true, token(look.Created, s.Generation)
	k.mu.Unlock()
	if !was {
		k.Ready.Clear(readyName)
		k.Lost(false)
		if k.told != "" {
			k.Log.Info("the store of run records is settled with")
		}
		k.told = ""
	}
}

// Leave remembers what the last look has shown, if the store is agreed on.
func (k *Keeper) Leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.agreed && k.Journal != nil {
		k.Journal.Saw(k.look.Last)
	}
}

func (k *Keeper) block(why string) {
	k.Ready.Block(readyName, why)
	if why != k.told {
		k.Log.Error("no work is taken in", "reason", why)
		k.told = why
	}
}

// begin makes sure that a generation waits for this process's loss, and returns it.
func (k *Keeper) begin(ctx context.Context, cause string) (State, error) {
	data, revision, err := k.Store.LoadFleet(ctx, StateName)
	if err != nil {
		return State{}, err
	}
	s, err := decodeState(data)
	if err != nil {
		return State{}, err
	}
	if s.awaits(k.Config.Member.Journal) {
		return s, nil
	}
	if k.Journal == nil {
		// A reconciler restores nothing: whatever generation has begun since it looked last answers what it found.
		k.mu.Lock()
		known := k.known.Generation
		k.mu.Unlock()
		if len(s.Missing()) > 0 || s.Generation != known {
			return s, nil
		}
	}
	if len(s.Missing()) > 0 {
		// A copy may not know of everybody.
		s.Awaits = k.add(append(s.Awaits, k.self()))
	} else {
		members, err := k.members(ctx)
		if err != nil {
			return State{}, err
		}
		if k.Journal != nil {
			members = append(slices.DeleteFunc(members, func(m Member) bool { return m.Journal == k.Config.Member.Journal }), k.self())
		}
		s = State{Schema: StateSchema, Generation: uuid.NewString(), Cause: cause, By: k.ID, At: k.Now(), Awaits: awaited(k.add(members)), Foreign: s.Foreign}
		k.Log.Error("a new generation of the store begins", "generation", s.Generation, "cause", cause, "journals", len(s.Awaits))
	}
	return s, k.save(ctx, &s, revision)
}

func (k *Keeper) self() Member {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.me()
}

// me is self; k.mu is held.
func (k *Keeper) me() Member {
	m := k.Config.Member
	m.Schema = ""
	m.At = k.Now()
	return m
}

func (k *Keeper) save(ctx context.Context, s *State, revision uint64) error {
	data, err := s.encode()
	if err != nil {
		return err
	}
	_, err = k.Store.SaveFleet(ctx, StateName, data, port.Header{}, revision)
	k.wroteNow()
	return err
}

// wroteNow: what a look that has begun already finds of our own records is void; the next one tells.
func (k *Keeper) wroteNow() {
	k.mu.Lock()
	k.wrote, k.looked = time.Now(), false
	k.mu.Unlock()
	k.Store.Check()
}

// token names a store in a generation.
func token(created time.Time, generation string) string {
	return created.UTC().Format(time.RFC3339Nano) + "/" + generation
}

// restore brings what the journal knows into the store, and says that it has.
func (k *Keeper) restore(ctx context.Context, look Look, s State, cause string) error {
	if k.Restore != nil {
		if err := k.Restore(ctx); err != nil {
			return err
		}
	}
	if err := k.adopt(look, s); err != nil {
		return err
	}
	k.mu.Lock()
	if k.cause == cause {
		k.cause = ""
	}
	k.mu.Unlock()
	if err := k.register(ctx, 0); err != nil {
		return err
	}
	if k.Journal == nil {
		return nil
	}
	return Confirm(ctx, k.Store, k.Config.Member.Journal, k.wroteNow)
}

// Confirm says in the present generation that a journal is restored, or lost. wrote may be nil.
func Confirm(ctx context.Context, store Store, journal string, wrote func()) error {
	for {
		data, revision, err := store.LoadFleet(ctx, StateName)
		if err != nil {
			return err
		}
		s, err := decodeState(data)
		if err != nil || !s.awaits(journal) {
			return err
		}
		s.Restored = append(s.Restored, journal)
		if data, err = s.encode(); err != nil {
			return err
		}
		_, err = store.SaveFleet(ctx, StateName, data, port.Header{}, revision)
		if wrote != nil {
			wrote()
		}
		if !errors.Is(err, port.ErrConflict) {
			return err
		}
	}
}

// adopt remembers the store as the one that is agreed on.
func (k *Keeper) adopt(look Look, s State) error {
	known := port.Known{Created: look.Created, Generation: s.Generation, Seen: look.Last}
	if k.Journal != nil {
		if err := k.Journal.Adopt(known); err != nil {
			return fmt.Errorf("what the journal knows of the store: %w", err)
		}
	}
	k.mu.Lock()
	k.known = known
	k.heard, k.heardAt = 0, time.Time{}
	k.mu.Unlock()
	return nil
}
