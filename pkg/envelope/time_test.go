package envelope

import (
	"encoding/json"
	"testing"
	"time"
)

func TestTimeJSON(t *testing.T) {
	type message struct {
		At   Time `json:"at"`
		Then Time `json:"then,omitempty"`
	}
	at := TimeOf(time.Date(2026, 12, 1, 11, 0, 30, 5_999_999, time.FixedZone("", 3600)))
	data, err := json.Marshal(message{At: at})
	if err != nil || string(data) != `{"at":"2026-12-01T10:00:30.005Z"}` {
		t.Fatalf("%s, %v", data, err)
	}
	var back message
	if err := json.Unmarshal(data, &back); err != nil || back.At != at || back.Then != 0 {
		t.Errorf("read back as %v, %v", back, err)
	}
	if data, err = json.Marshal(message{}); err != nil || string(data) != `{"at":null}` {
		t.Errorf("not set: %s, %v", data, err)
	}
}

func TestTimeReads(t *testing.T) {
	want := TimeOf(time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC))
	for text, d := range map[string]time.Duration{
		`"2026-12-01T10:00:00Z"`:                0,
		`"2026-12-01T10:00:00.000Z"`:            0,
		`"2026-12-01T12:00:00.25+02:00"`:        250 * time.Millisecond,
		`"2026-12-01T10:00:00.000000001Z"`:      time.Millisecond, // a deadline or a wait is never read as earlier than it is
		`"2026-12-01T10:00:00.001999999Z"`:      2 * time.Millisecond,
		`"2026-12-01T10:00:00.123456789-00:00"`: 124 * time.Millisecond,
	} {
		var got Time
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want.Add(d) {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	got := Time(5)
	if err := json.Unmarshal([]byte("null"), &got); err != nil || got != 0 {
		t.Errorf("null: %d, %v", got, err)
	}
	for _, text := range []string{`0`, `""`, `"tomorrow"`, `"2026-12-01"`, `"2026-12-01 10:00:00Z"`, `"2026-13-01T10:00:00Z"`, `true`, `[]`} {
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%s was read as %s", text, got)
		}
	}
}

func TestTimeArithmetic(t *testing.T) {
	m := time.Date(2026, 12, 1, 10, 0, 0, 1, time.UTC)
	if TimeNotBefore(m) != TimeOf(m)+1 || TimeNotBefore(m.Add(-1)) != TimeOf(m) {
		t.Error("a moment inside a millisecond is rounded up, a whole one is kept")
	}
	a := TimeOf(m)
	if b := a.Add(1500 * time.Millisecond); b.Sub(a) != 1500*time.Millisecond || !b.Time().Equal(a.Time().Add(1500*time.Millisecond)) {
		t.Error("what is added can be taken away")
	}
	if a.Time().Location() != time.UTC || a.String() != "2026-12-01T10:00:00.000Z" {
		t.Errorf("a time is UTC with milliseconds: %s", a)
	}
	// Moments before 1970 round the same way.
	old := time.Date(1969, 12, 31, 23, 59, 59, 999_500_000, time.UTC)
	if TimeOf(old) != -1 || TimeNotBefore(old) != 0 {
		t.Errorf("before the epoch: %d, %d", TimeOf(old), TimeNotBefore(old))
	}
}
