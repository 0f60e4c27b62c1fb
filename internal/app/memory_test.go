package app

import (
	"runtime"
	"runtime/debug"
	"testing"
)

// The collector's target leaves a busy process its room, and no more of it the more is in use.
func TestBusyPercent(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	for _, x := range []struct {
		inUse uint64
		want  int
	}{
		{0, gcMost},
		{1, gcMost},
		{2 * mb, gcMost},
		{4 * mb, 400},
		{8 * mb, 200},
		{16 * mb, gcDefault},
		{2000 * mb, gcDefault},
	} {
		if got := busyPercent(x.inUse); got != x.want {
			t.Errorf("with %d bytes in use: %d %%, want %d", x.inUse, got, x.want)
		}
	}
}

// The target is aimed anew after a collection, without waiting for the next look, and is Go's own again at the end. What
// the collector itself is told is not looked at: every process that a test starts here tells it something.
func TestKeepMemoryAims(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(debug.SetGCPercent(gcDefault))
	k := newKeeper(true)
	k.busy, k.percent = true, 1 // no target that it would choose
	k.afterCollection()
	for k.target() == 1 {
		runtime.GC()
		runtime.Gosched()
	}
	k.end()
	if now := k.target(); now != gcDefault {
		t.Errorf("at the end the target is %d %%, want %d", now, gcDefault)
	}
}

// GOGC says what is wanted: then the target is left alone.
func TestKeepMemoryLeavesGOGCAlone(t *testing.T) {
	t.Setenv("GOGC", "70")
	k := newKeeper(true)
	k.percent = 1
	k.set(true)
	k.end()
	if now := k.target(); now != 1 {
		t.Errorf("the target was set to %d %% although GOGC is set", now)
	}
}

func (k *keeper) target() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.percent
}
