package mcptool

import (
	"bytes"
	"os"
	"sync"
	"time"
)

// What is kept of a standard error.
const (
	tailBytes = 8 << 10
	tailLines = 10
	// tailPatience is how long its end may take after its program's: a process that has got away may hold it open.
	tailPatience = time.Second
)

// tail keeps the end of what comes through a pipe.
type tail struct {
	over chan struct{}

	mu   sync.Mutex
	last []byte
}

// newTail returns the pipe's other end, for a program; close it here once the program has it.
func newTail() (*tail, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	t := &tail{over: make(chan struct{})}
	go func() {
		defer close(t.over)
		defer r.Close()
		b := make([]byte, 4<<10)
		for {
			n, err := r.Read(b)
			t.mu.Lock()
			t.last = append(t.last, b[:n]...)
			t.last = t.last[max(0, len(t.last)-tailBytes):]
			t.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return t, w, nil
}

// finish waits for the end of a pipe whose program has ended.
func (t *tail) finish() {
	patience := time.NewTimer(tailPatience)
	defer patience.Stop()
	select {
	case <-t.over:
	case <-patience.C:
	}
}

// lines are the last lines that are not empty.
func (t *tail) lines() (out []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range bytes.Lines(t.last) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			out = append(out, string(line))
		}
	}
	return out[max(0, len(out)-tailLines):]
}
