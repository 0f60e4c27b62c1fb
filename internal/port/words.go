// Package port has the words in which the drivers and NATS speak with one another: what is stored, delivered and published,
// and how it fails. Each is said here once. The drivers ask for the interfaces, internal/bus is them, and the tests'
// servers in memory are too. Nothing here decides anything.
package port

import (
	"errors"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// What callers branch on.
var (
	// ErrNotFound: there is no record, message, letter or object, said by the leader.
	ErrNotFound = errors.New("not found")
	// ErrConflict: another revision is stored, and nothing of ours. Load and decide again.
	ErrConflict = errors.New("another revision is stored")
	// ErrFull: the store has no room, and nothing of ours was stored. The run waits.
	ErrFull = errors.New("the store is full")
	// ErrRefused: the store does not take this, now or later: it is too large, or this user may not write it.
	ErrRefused = errors.New("refused by the store")
)

// InvalidTenant stands for a tenant that is no identifier (contract §3), AllTenants for every tenant in the operator calls
// that allow it (contract §9). Neither is an identifier.
const (
	InvalidTenant = "_invalid"
	AllTenants    = "_all"
)

// ObjectsBucket is the object store that keeps large results (contract §2).
const ObjectsBucket = "AGENTRUN_OBJECTS"

// FleetTenant has the records of the fleet among those of the runs: agentrun.runs._fleet.<name>. It is no identifier, so
// that no publisher's run can be mistaken for one of them.
const FleetTenant = "_fleet"

// ActiveRecord is the record of the fleet in which the reconcilers agree on the active one.
const ActiveRecord = "reconciler"

// ActiveID is how a watch of the records names it.
var ActiveID = run.ID{Tenant: FleetTenant, Run: ActiveRecord}

// Header is what a record says about itself beside its body, so that a reconciler can watch headers only.
type Header struct {
	State    string
	Due      time.Time // whole milliseconds; zero: nothing is due
	Lease    string    // see record.ParseLease; empty: none
	Workflow string
	Episode  int           // 0: it is no run's
	Letter   string        // owner of the open letter; empty: none is open
	TTL      time.Duration // rounded up to whole seconds; 0: it stays until it is overwritten
}

// Record is a run's record as stored.
type Record struct {
	Data   []byte
	Seq    uint64    // its revision
	Time   time.Time // when it was stored, by the server's clock
	Header Header
}

// Outgoing is one numbered outcome on its way.
type Outgoing struct {
	*envelope.Outcome // whose it is, and which one

	// First is the first revision of the run's record. It tells this run from an earlier one of the same name.
	First uint64
	// Last is the sequence of the message before it on its subject; 0 if there is none or it is not known.
	Last uint64
	// PublishedBefore says that the record knows of an earlier message on this subject. Then an empty subject means that it
	// has expired; without it, that it was never published.
	PublishedBefore bool
	Traceparent     string // optional
	Data            []byte // the outcome as it is published
	// New is set by Append: this very publication is what is stored, and it was not there before. Of all that publish an
	// outcome one is told so, or none, if it ended before it was answered.
	New bool
}

// Run is the run whose outcome it is.
func (o *Outgoing) Run() run.ID { return run.ID{Tenant: o.Tenant, Run: o.RunID} }

// Acker answers a delivery. Answers are plain: nil says only that one was handed to the connection. None is fenced, and
// any may be lost.
type Acker interface {
	// Ack removes the message from its stream.
	Ack() error
	// InProgress starts the ack wait anew.
	InProgress() error
	// Release gives the message back, to be delivered again after delay, which the server may forget in a crash.
	Release(delay time.Duration) error
}

// Delivery is a job or a wake in this process's hands until it is acknowledged, released, or the ack wait passes without
// InProgress. It can come again at any time.
type Delivery struct {
	engine.Message        // its queue is the consumer's, so always an identifier
	Wake           bool   // it says only "look"
	ID             run.ID // as in the subject; not identifiers unless Valid
	Valid          bool   // the subject's tokens are identifiers of contract §1
	Subject        string
	Redelivered    bool // a hint only: the server forgets under a crash
	Acker
}

// Report says what a watch reports.
type Report int

const (
	// Stored: a message was stored, or was there when the watch began.
	Stored Report = iota
	// Current: everything that was there when the watch began has been reported; once, and once after each Reset.
	Current
	// Reset: the stream was made anew. All that was reported before is void; its messages follow from the first.
	Reset
)

// Change is a record as its header shows it. Removals are not seen.
type Change struct {
	Report Report
	ID     run.ID
	Seq    uint64
	Time   time.Time // when the server stored it
	Header Header
}

// Outcome is what is known of an outcome in the stream without its body.
type Outcome struct {
	Report Report
	ID     run.ID
	Scope  envelope.Scope
	N      int
	First  uint64 // the first revision of its run's record; 0: it does not say
	Seq    uint64
	Time   time.Time
}

// Letter is a dead letter's message; the owner of its meaning is the run's record.
type Letter struct {
	Report   Report
	ID       run.ID
	Owner    string
	LetterID string
	Data     []byte
	Seq      uint64
	Time     time.Time
}

// Known is what is remembered of the store of run records: beside the journal by an executor, in memory by a reconciler.
type Known struct {
	Created    time.Time // of AGENTRUN_RUNS; zero: no store is known yet
	Generation string
	Member     uint64    // revision of the executor's own record; 0: none
	Joined     time.Time // when that was written
	Seen       uint64    // the highest sequence that was seen
}
