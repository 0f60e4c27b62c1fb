package port

import (
	"context"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Store has the run records and what is published from them. All methods are safe for concurrent use and return when the
// outcome is known or ctx ends.
type Store interface {
	// Load reads at the leader. ErrNotFound.
	Load(ctx context.Context, id run.ID) (Record, error)
	// Save is a compare-and-set on the revision (0: there must be none): an error is not an answer, so the same bytes are
	// sent again until they are known to be stored or refused. ErrConflict, ErrFull, ErrRefused.
	Save(ctx context.Context, id run.ID, data []byte, h Header, expect uint64) (uint64, error)
	// Server names the process of the server that is connected now; empty while there is none. One that is started anew has
	// another name, and perhaps an older copy of what was stored.
	Server() string
	// Append publishes outcomes, sent together in order, and waits for all; publishing again what is there changes
	// nothing. The result has the sequence of each, 0 where a later one has passed it; New is set in out, also of those
	// that were stored before an error. Outcomes follow from a record: server is what Server has said before that was read
	// or stored, and they are sent to no other. ErrConflict if another is connected: read the record again.
	Append(ctx context.Context, server string, out []Outgoing) ([]uint64, error)
	// LastOutcome reads the last outcome of a result subject. ErrNotFound if there is none.
	LastOutcome(ctx context.Context, id run.ID, scope envelope.Scope) (Outcome, error)
	// ReadOutcome reads an outcome by its sequence. ErrNotFound if it has expired.
	ReadOutcome(ctx context.Context, seq uint64) ([]byte, error)
	// PutLetter stores a letter at its subject if expect is the subject's last sequence, 0 for none. ErrConflict, ErrFull.
	PutLetter(ctx context.Context, id run.ID, owner string, data []byte, letterID string, expect uint64) (uint64, error)
	// GetLetter reads the letter at a subject. ErrNotFound.
	GetLetter(ctx context.Context, id run.ID, owner string) (Letter, error)
	// DeleteLetter removes a letter by its sequence; one that is gone already is no error.
	DeleteLetter(ctx context.Context, seq uint64) error
	// PutAlert publishes an alert. id names its cause: the same again is one message where the server still remembers it.
	PutAlert(ctx context.Context, tenant, owner, reason string, data []byte, id string) error
	// PutObject keeps a large result under a name; the same name again replaces it by the same. ErrRefused.
	PutObject(ctx context.Context, name string, data []byte) error
	// GetObject reads a large result. ErrNotFound if it has expired.
	GetObject(ctx context.Context, name string) ([]byte, error)
}

// Fleet has the records in which the processes of the fleet agree, by name. All methods are safe for concurrent use.
type Fleet interface {
	// LoadFleet reads at the leader; revision 0 if there is none.
	LoadFleet(ctx context.Context, name string) (data []byte, revision uint64, err error)
	// SaveFleet is a compare-and-set like Store.Save; of the header lease and TTL count. ErrConflict.
	SaveFleet(ctx context.Context, name string, data []byte, h Header, expect uint64) (uint64, error)
}

// Watch follows the streams. Each method returns when ctx ends, and survives restarts of the server: nothing is reported
// twice unless there is a Reset, but letters, which come all again after each reconnect. fn is called from one goroutine at
// a time.
type Watch interface {
	// WatchRuns reports the headers of every record in the order of their revisions, those of the fleet included.
	WatchRuns(ctx context.Context, fn func(Change)) error
	// WatchOutcomes reports terminal outcomes stored at or after a time; zero is all.
	WatchOutcomes(ctx context.Context, from time.Time, fn func(Outcome)) error
	// WatchLetters reports every letter, whole, and every replacement of one.
	WatchLetters(ctx context.Context, fn func(Letter)) error
}

// Scan reads the streams from end to end. Each method returns when all that was there has been reported; a few that are
// stored meanwhile may come too. fn may take its time: the server waits for it.
type Scan interface {
	// ScanRuns reports every record whose revision is from or later, whole, in the order of their revisions.
	ScanRuns(ctx context.Context, from uint64, fn func(id run.ID, seq uint64, data []byte)) error
	ScanOutcomes(ctx context.Context, fn func(Outcome)) error
	ScanLetters(ctx context.Context, fn func(Letter)) error
	// LettersFull reads whether the letters are at their limit at this moment: what ends then waits for room.
	LettersFull(ctx context.Context) (bool, error)
}

// Hints tells a lease's holder something.
type Hints interface {
	// Hint tells the holder of a lease to read a record now. It may be lost: the holder sees the record when it writes it.
	Hint(holder string, id run.ID) error
}

// Waker tells executors that a run needs them.
type Waker interface {
	Hints
	// Wake puts the run into its queue's wakes. fresh is false if one was there already, which may be about to be answered
	// for what its executor knew before.
	Wake(ctx context.Context, queue string, id run.ID) (fresh bool, err error)
}
