package queue

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
)

// Picks remembers, across the death of the process, which jobs were taken out of their order and not answered. One of
// them may kill whoever reads it; it is not picked here again but comes in its order, where each delivery is counted.
//
// It is a file of sequences that is written without a sync: it has to survive the process, not the machine. Safe for
// concurrent use.
type Picks struct {
	file *os.File

	mu    sync.Mutex
	avoid map[uint64]bool
	used  map[uint64]int64 // place of a sequence in the file
	free  []int64
	end   int64
}

// picksMost bounds what is believed of a file; no executor has more picks at once.
const picksMost = 1 << 16

// OpenPicks opens the file, or makes it. What it names is avoided from now on; the file is begun anew.
func OpenPicks(path string) (*Picks, error) {
	c := &Picks{avoid: map[uint64]bool{}, used: map[uint64]int64{}}
	data, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("queue: picks: %w", err)
	}
	for ; len(data) >= 8 && len(c.avoid) < picksMost; data = data[8:] {
		if seq := binary.LittleEndian.Uint64(data); seq != 0 {
			c.avoid[seq] = true
		}
	}
	if c.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("queue: picks: %w", err)
	}
	// The sequences that are avoided stay at the front: this process may die of something else.
	for seq := range c.avoid {
		c.used[seq] = c.end
		c.put(seq, c.end)
		c.end += 8
	}
	if err := c.file.Truncate(c.end); err != nil {
		_ = c.file.Close()
		return nil, fmt.Errorf("queue: picks: %w", err)
	}
	return c, nil
}

// Close closes the file. A nil Picks remembers nothing.
func (c *Picks) Close() error {
	if c == nil {
		return nil
	}
	return c.file.Close()
}

// put writes a sequence; an error only means that it is not remembered.
func (c *Picks) put(seq uint64, at int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], seq)
	_, _ = c.file.WriteAt(b[:], at)
}

func (c *Picks) avoided(seq uint64) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.avoid[seq]
}

// passed forgets what need not be avoided any more, because it has been delivered in its order.
func (c *Picks) passed(floor uint64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for seq := range c.avoid {
		if seq <= floor {
			delete(c.avoid, seq)
			c.forget(seq)
		}
	}
}

// begin notes a pick; finish, that it was answered.
func (c *Picks) begin(seq uint64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.end
	if n := len(c.free); n > 0 {
		at, c.free = c.free[n-1], c.free[:n-1]
	} else {
		c.end += 8
	}
	c.used[seq] = at
	c.put(seq, at)
}

func (c *Picks) finish(seq uint64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(seq)
}

func (c *Picks) forget(seq uint64) {
	at, ok := c.used[seq]
	if !ok {
		return
	}
	delete(c.used, seq)
	c.free = append(c.free, at)
	c.put(0, at)
}
