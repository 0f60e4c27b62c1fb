package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// mendEvery is how often the embedded server is asked how it is, and mendLatest the longest time between two starts of
	// one that does not recover.
	mendEvery  = time.Second
	mendLatest = 5 * time.Minute
	// mendRoom is how much room its disk must have before it is started anew, in bytes.
	mendRoom = 4 << 20
)

// Mend looks after the server until ctx ends. One whose disk was full stores nothing more, stream by stream, until it is
// started anew, and nobody else can do that for a server in this process: it is stopped in good order and started as soon as
// there is room. Clients lose their connection for that moment, and find it again.
func (e *Embedded) Mend(ctx context.Context, log *slog.Logger, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	told, wait, next := "", every, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		fault := e.fault()
		if fault == "" {
			told = ""
			if time.Since(next) > mendLatest {
				wait = every
			}
			continue
		}
		if fault != told {
			told = fault
			log.Error("the embedded NATS server cannot store; it is started anew as soon as its disk has room", "dir", e.dir, "error", fault)
		}
		if time.Now().Before(next) || e.room() < mendRoom {
			continue
		}
		if err := e.again(); err != nil {
			log.Error("the embedded NATS server is not started anew yet", "error", err)
		} else {
			log.Warn("the embedded NATS server was started anew", "because", fault)
		}
		next, wait = time.Now().Add(wait), min(2*wait, mendLatest)
	}
}

// again stops the server and starts it anew.
func (e *Embedded) again() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.stop()
	return e.start()
}

// fault is why the server can store no more, "" if it can: what its own /healthz says of a failed write.
func (e *Embedded) fault() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ""
	}
	if e.server == nil {
		return "it is not running"
	}
	if !e.server.JetStreamEnabled() {
		return "JetStream has been switched off, as a server does that cannot write"
	}
	answer := httptest.NewRecorder()
	e.server.HandleHealthz(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	var h serverHealth
	if json.Unmarshal(answer.Body.Bytes(), &h) == nil && strings.Contains(h.Error, "write error") {
		return h.Error
	}
	return ""
}

// serverHealth is what a NATS server says at /healthz.
type serverHealth struct {
	Status string `json:"status"`
	Error  string `json:"error"`
}

// room is how many bytes the store's disk has free.
func (e *Embedded) room() uint64 {
	var disk unix.Statfs_t
	if err := unix.Statfs(e.dir, &disk); err != nil {
		return 0
	}
	return disk.Bavail * uint64(disk.Bsize) //nolint:gosec // never negative
}
