package pause

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries Longer
		var took []time.Duration
		for range 8 {
			began := time.Now()
			if !tries.Wait(t.Context()) {
				t.Fatal("it did not wait")
			}
			took = append(took, time.Since(began))
		}
		const ms = time.Millisecond
		if want := []time.Duration{50 * ms, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 2000 * ms, 2000 * ms}; !slices.Equal(took, want) {
			t.Errorf("the pauses are %v", took)
		}
	})
}

func TestPauseEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if For(ctx, time.Hour) || time.Since(began) != time.Second {
			t.Errorf("it waited %v", time.Since(began))
		}
	})
}
