package connector

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// retryAfterMax bounds what a far side can ask for: a longer wait is as good as this one, and stays representable.
const retryAfterMax = 1_000_000_000 * time.Second

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
	if dates := header["date"]; len(dates) == 1 {
		if d, ok := httpDate(dates[0], now); ok {
			now = d
		}
	}
	return min(max(at.Sub(now), 0), retryAfterMax), true
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
