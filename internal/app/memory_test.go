package app

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
)

// The collector's target leaves a busy process its room, and no more of it the more is in use.
func TestBusyPercent(t *testing.T) {
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

// The target is aimed anew after a collection, without waiting for the next look, and is Go's own again at the end.
func TestKeepMemoryAims(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(gcDefault))
	k := &keeper{tune: true, percent: gcDefault, busy: true}
	k.afterCollection()
	for k.target() == gcDefault { // the test's own heap is small
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
	before := debug.SetGCPercent(70)
	defer debug.SetGCPercent(before)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	keepMemory(ctx, true)
	if now := debug.SetGCPercent(70); now != 70 {
		t.Errorf("the target is %d %%, want the 70 of GOGC", now)
	}
}

func (k *keeper) target() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.percent
}
