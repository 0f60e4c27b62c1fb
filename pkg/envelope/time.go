package envelope

import (
	"bytes"
	"fmt"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
)

// Time is a moment in whole milliseconds since the Unix epoch, UTC. On the wire it is RFC 3339 with milliseconds
// (contract §1). The zero value means "not set" and is left out by omitempty.
type Time int64

const timeLayout = "2006-01-02T15:04:05.000Z"

// TimeOf rounds a moment down to the millisecond.
func TimeOf(t time.Time) Time { return Time(t.UnixMilli()) }

// TimeNotBefore rounds a moment up to the millisecond: for what must be no earlier.
func TimeNotBefore(t time.Time) Time {
	ms := t.UnixMilli()
	if t.Sub(time.UnixMilli(ms)) > 0 {
		ms++
	}
	return Time(ms)
}

// Time returns the moment as a time.Time in UTC.
func (t Time) Time() time.Time { return time.UnixMilli(int64(t)).UTC() }

// Add returns the moment d later; a fraction of a millisecond is dropped.
func (t Time) Add(d time.Duration) Time { return t + Time(d.Milliseconds()) }

// Sub returns the duration from u to t.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t-u) * time.Millisecond }

// String is the RFC 3339 form with milliseconds.
func (t Time) String() string { return t.Time().Format(timeLayout) }

// MarshalJSON writes the RFC 3339 form; an unset time is null.
func (t Time) MarshalJSON() ([]byte, error) {
	return strictjson.AppendTime(make([]byte, 0, len(timeLayout)+2), int64(t)), nil
}

// UnmarshalJSON reads any RFC 3339 time, or null.
func (t *Time) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*t = 0
		return nil
	}
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return fmt.Errorf("a time must be an RFC 3339 string")
	}
	v, err := time.Parse(time.RFC3339Nano, string(b[1:len(b)-1]))
	if err != nil {
		return fmt.Errorf("a time must be an RFC 3339 string: %w", err)
	}
	*t = TimeNotBefore(v)
	return nil
}
