package app

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/internal/streams"
)

// Intake stops at 90 % of what running work needs, and warns from half of it.
func TestRoom(t *testing.T) {
	t.Parallel()
	runs := func(n int64) streams.Status { return streams.Status{Runs: n, RunsMax: 100, LettersMax: 100} }
	for _, x := range []struct {
		name            string
		room            room
		reason, warning string // a part of each, "" for none
	}{
		{"empty", room{streams: runs(0), free: 1}, "", ""},
		{"nothing is known yet", room{free: 1}, "", ""},
		{"just below half", room{streams: runs(49), free: 1}, "", ""},
		{"half", room{streams: runs(50), free: 1}, "", "--max-runs"},
		{"just below the limit", room{streams: runs(89), free: 1}, "", "--max-runs"},
		{"at the limit", room{streams: runs(90), free: 1}, "--max-runs", ""},
		{"letters", room{streams: streams.Status{Letters: 90, LettersMax: 100}, free: 1}, "--max-letters", ""},
		{"disk nearly full", room{streams: runs(0), free: 0.09}, "disk", ""},
		{"disk with room", room{streams: runs(0), free: 0.11}, "", ""},
		{"journal", room{streams: runs(0), free: 1, failure: errors.New("no space left")}, "no space left", ""},
		{"the journal comes first", room{streams: runs(95), free: 0, failure: errors.New("no space left")}, "no space left", ""},
	} {
		reason, warning := x.room.judge()
		if (reason == "") != (x.reason == "") || !strings.Contains(reason, x.reason) || (warning == "") != (x.warning == "") || !strings.Contains(warning, x.warning) {
			t.Errorf("%s: %q, %q", x.name, reason, warning)
		}
	}
}

// What the metrics show is what intake is judged by.
func TestRoomIsShown(t *testing.T) {
	t.Parallel()
	got := room{free: 0.25, streams: streams.Status{Runs: 1, RunsMax: 4, Letters: 3, LettersMax: 4, Jobs: 7, JobsMax: 14}}.shown()
	if want := (observe.Room{Runs: 0.25, Letters: 0.75, Jobs: 0.5, JournalFree: 0.25}); got != want {
		t.Errorf("%+v, wanted %+v", got, want)
	}
	if got := (room{free: 1}).shown(); got != (observe.Room{JournalFree: 1}) {
		t.Errorf("while nothing is known: %+v", got)
	}
}
