package connector

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
)

// retryAfterMax bounds what a far side can ask for: a longer wait is as good as this one, and stays representable.
const retryAfterMax = 1_000_000_000 * time.Second

// told is how long a response asks to wait: Retry-After, else when an allowance that it shows as used up is there again
// (ratelimit.go). draft-ietf-httpapi-ratelimit-headers has Retry-After come first too.
func told(header map[string][]string, now time.Time) (time.Duration, bool) {
	if d, ok := retryAfter(header, now); ok {
		return d, true
	}
	d, _, ok := allowance(header, farNow(header, now))
	return d, ok
}

// limited reports whether a refusal is one for now: it says when to come again, or that an allowance is used up.
func (c *classifier) limited(header map[string][]string) bool {
	_, ok := retryAfter(header, c.now())
	_, usedUp, _ := allowance(header, c.now())
	return ok || usedUp
}

// waiting completes a reply that lets another attempt follow with how long that has to wait: what the rule's own
// expression says, else what the response's headers do.
func (c *classifier) waiting(reply envelope.Reply, resp *Response, s *scope, named *expr) envelope.Reply {
	if reply.Row.Directive != envelope.AfterDelay {
		return reply
	}
	d, ok := time.Duration(0), false
	if named != nil {
		d, ok = named.wait(s, farNow(resp.Header, c.now()))
	}
	if !ok {
		d, _ = told(resp.Header, c.now())
	}
	if resp.Renewal != nil {
		d = max(d, resp.Renewal.After)
	}
	reply.RetryAfter = d.Milliseconds()
	return reply
}

// farNow is what the far side's clock shows: its Date where a response has one that can be read, else ours. What it says
// of a time is about that clock.
func farNow(header map[string][]string, now time.Time) time.Time {
	if dates := header["date"]; len(dates) == 1 {
		if d, ok := httpDate(dates[0], now); ok {
			return d
		}
	}
	return now
}

// retryAfter reads Retry-After as contract §6 says: one value, whole seconds or an HTTP date in one of the three formats
// of RFC 9110; anything else is absent. A date counts from the response's own Date header where that can be read (both
// are on the far side's clock), else from now. A date in the past is no wait.
func retryAfter(header map[string][]string, now time.Time) (time.Duration, bool) {
	values := header["retry-after"]
	if len(values) != 1 {
		return 0, false
	}
	v := strings.Trim(values[0], " \t")
	if v == "" {
		return 0, false
	}
	if strings.Trim(v, "0123456789") == "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n > int64(retryAfterMax/time.Second) {
			return retryAfterMax, true
		}
		return time.Duration(n) * time.Second, true
	}
	at, ok := httpDate(v, now)
	if !ok {
		return 0, false
	}
	return until(at, farNow(header, now)), true
}

func until(at, now time.Time) time.Duration { return min(max(at.Sub(now), 0), retryAfterMax) }

// Numbers from here on are times and not lengths: seconds and milliseconds since 1970. No wait is longer than thirty years,
// and no clock shows a day before 2001.
const (
	epochSeconds = 1e9
	epochMillis  = 1e12
)

// readWait reads what an API says of when to come again, outside of Retry-After: seconds, with a fraction or without, a
// time as seconds or milliseconds since 1970, an RFC 3339 time or an HTTP date. now is the far side's.
func readWait(v any, now time.Time) (time.Duration, bool) {
	text := ""
	switch v := v.(type) {
	case json.Number:
		text = string(v)
	case string:
		text = strings.Trim(v, " \t")
	}
	if text == "" {
		return 0, false
	}
	if strings.Trim(text, "0123456789.eE+-") != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			var ok bool
			if at, ok = httpDate(text, now); !ok {
				return 0, false
			}
		}
		return until(at, now), true
	}
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || n < 0:
		return 0, false
	case n < epochSeconds:
		return time.Duration(math.Ceil(n*1e3)) * time.Millisecond, true
	case n < epochMillis:
		n *= 1e3
	case n > 1e15:
		return retryAfterMax, true
	}
	return until(time.UnixMilli(int64(math.Ceil(n))), now), true
}

// httpDate reads the three formats strictly: Go's parser also takes other zones, fractions and single digits, so what it
// reads must print the same again (but for the day's name, which carries nothing).
func httpDate(s string, now time.Time) (time.Time, bool) {
	for _, layout := range []string{http.TimeFormat, "Monday, 02-Jan-06 15:04:05 GMT", time.ANSIC} {
		t, err := time.Parse(layout, s)
		if err != nil || afterDayName(t.Format(layout)) != afterDayName(s) {
			continue
		}
		if layout[0:6] == "Monday" {
			t = nearCentury(t, now)
		}
		return t, true
	}
	return time.Time{}, false
}

func afterDayName(s string) string {
	if i := strings.IndexByte(s, ' '); i >= 0 {
		return s[i:]
	}
	return s
}

// nearCentury reads a year of two digits as RFC 9110 says: one that seems to be more than 50 years in the future is the
// most recent past year with these digits.
func nearCentury(t, now time.Time) time.Time {
	year := now.UTC().Year()/100*100 + t.Year()%100
	t = time.Date(year, t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
	if t.After(now.AddDate(50, 0, 0)) {
		t = t.AddDate(-100, 0, 0)
	}
	return t
}
