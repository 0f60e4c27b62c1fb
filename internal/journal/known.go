package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/agentrun/executor/internal/port"
)

// Known reads what is remembered. What Saw and Joined were told a moment ago may be missing.
func (j *Journal) Known() (k port.Known, err error) {
	err = j.view(func(v views) error {
		k, err = knownOf(j.path, v)
		return err
	})
	return k, err
}

func knownOf(path string, v views) (k port.Known, err error) {
	read := func(key []byte, length int) []byte {
		value := v.meta.Get(key)
		if value == nil || err != nil {
			return nil
		}
		payload, ok := open(tagMeta, key, value)
		if !ok || length > 0 && len(payload) != length {
			err = damaged(path, fmt.Sprintf("the entry %s does not match its checksum", key))
			return nil
		}
		return payload
	}
	if b := read(metaCreated, 12); b != nil {
		k.Created = timeFrom(b)
	}
	k.Generation = string(read(metaGeneration, 0))
	if b := read(metaMember, 20); b != nil {
		k.Member, k.Joined = binary.BigEndian.Uint64(b), timeFrom(b[8:])
	}
	if b := read(metaSeen, 8); b != nil {
		k.Seen = binary.BigEndian.Uint64(b)
	}
	return k, err
}

// Adopt remembers the store that the journal has agreed on; it is on disk when nil is returned.
func (j *Journal) Adopt(k port.Known) error {
	j.mu.Lock()
	j.seen, j.seenDue = k.Seen, false
	j.mu.Unlock()
	return <-j.enqueue(&request{ops: []op{
		{kind: opMeta, key: metaCreated, value: appendTime(nil, k.Created)},
		{kind: opMeta, key: metaGeneration, value: []byte(k.Generation)},
		memberOp(k.Member, k.Joined), seenOp(k.Seen),
	}})
}

// Saw remembers that the stream of run records has reached this sequence, with the next commit or with one of its own after
// about 100 ms. A lower one than before changes nothing.
func (j *Journal) Saw(seq uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if seq <= j.seen || j.closing || j.broken != nil {
		return
	}
	j.seen, j.seenDue = seq, true
	j.arm(lazyDelay)
}

// Joined remembers the revision of the executor's own record in the store, as Saw does.
func (j *Journal) Joined(revision uint64, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closing || j.broken != nil {
		return
	}
	j.lazy = append(j.lazy, memberOp(revision, at))
	j.arm(lazyDelay)
}

// Met reads what Meet was given last; nil: nothing.
func (j *Journal) Met() (others []byte, err error) {
	err = j.view(func(v views) error {
		value := v.meta.Get(metaFleet)
		if value == nil {
			return nil
		}
		payload, ok := open(tagMeta, metaFleet, value)
		if !ok {
			return damaged(j.path, fmt.Sprintf("the entry %s does not match its checksum", metaFleet))
		}
		others = bytes.Clone(payload)
		return nil
	})
	return others, err
}

// Meet remembers the other executors of the fleet, as Saw does.
func (j *Journal) Meet(others []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closing || j.broken != nil {
		return
	}
	j.lazy = append(j.lazy, op{kind: opMeta, key: metaFleet, value: others})
	j.arm(lazyDelay)
}

func seenOp(n uint64) op {
	return op{kind: opMeta, key: metaSeen, value: binary.BigEndian.AppendUint64(nil, n)}
}

func memberOp(revision uint64, at time.Time) op {
	return op{kind: opMeta, key: metaMember, value: appendTime(binary.BigEndian.AppendUint64(nil, revision), at)}
}

func appendTime(b []byte, t time.Time) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(t.Unix()))
	return binary.BigEndian.AppendUint32(b, uint32(t.Nanosecond()))
}

func timeFrom(b []byte) time.Time {
	return time.Unix(int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint32(b[8:]))).UTC()
}
