package connector

import (
	"strconv"
	"strings"
	"time"
)

// Rate limits as APIs show them in headers: RateLimit and RateLimit-Policy as draft-ietf-httpapi-ratelimit-headers-11 has
// them (its drafts 08 to 10 write the same, 07 one dictionary, those before three fields), and the fields that GitHub and
// many others have instead, whose reset is seconds or a time.

// allowances are the older pairs of fields: what is left, and when there is more.
var allowances = [...][2]string{
	{"ratelimit-remaining", "ratelimit-reset"},
	{"x-ratelimit-remaining", "x-ratelimit-reset"},
	{"x-rate-limit-remaining", "x-rate-limit-reset"},
}

// allowance reads the rate limits of a response. usedUp says that nothing is left of one; wait is when there is again, of
// several the latest, and ok is false if none says. now is the far side's.
func allowance(header map[string][]string, now time.Time) (wait time.Duration, usedUp, ok bool) {
	longest := func(d time.Duration) { wait, ok = max(wait, d), true }
	for _, limit := range limitItems(header["ratelimit"]) {
		if left, known := limit.number("r", "remaining"); !known || left > 0 {
			continue
		}
		usedUp = true
		if t, known := limit.number("t", "reset"); known {
			longest(t)
		} else if w, known := window(header["ratelimit-policy"], limit.name); known {
			longest(w) // it says no more than that
		}
	}
	for _, names := range allowances {
		left, reset := header[names[0]], header[names[1]]
		if len(left) != 1 || strings.Trim(left[0], " \t") != "0" {
			continue
		}
		usedUp = true
		if len(reset) == 1 {
			if d, known := readWait(reset[0], now); known {
				longest(d)
			}
		}
	}
	return wait, usedUp, ok
}

// window is the length of the named policy.
func window(policies []string, name string) (time.Duration, bool) {
	for _, p := range limitItems(policies) {
		if p.name == name {
			return p.number("w")
		}
	}
	return 0, false
}

// limitItem is an item of a structured field with its parameters (RFC 9651), or a whole dictionary without a name.
type limitItem struct {
	name   string
	params map[string]string
}

// number is the first of the parameters that is there, as seconds; what is no whole number of at most fifteen digits is
// not there.
func (i *limitItem) number(names ...string) (time.Duration, bool) {
	for _, name := range names {
		v, there := i.params[name]
		if !there || len(v) == 0 || len(v) > 15 || strings.Trim(v, "0123456789") != "" {
			continue
		}
		n, err := strconv.ParseInt(v, 10, 64)
		return min(time.Duration(min(n, int64(retryAfterMax/time.Second)))*time.Second, retryAfterMax), err == nil
	}
	return 0, false
}

// limitItems reads a list of names with parameters, or a dictionary of numbers. A field that is neither says nothing: a
// wait that was misread is worse than the tool's own backoff.
func limitItems(field []string) (out []limitItem) {
	members, ok := splitQuoted(strings.Join(field, ","), ',')
	if !ok {
		return nil
	}
	dictionary := limitItem{params: map[string]string{}}
	for _, m := range members {
		parts, _ := splitQuoted(m, ';')
		name := strings.Trim(parts[0], " \t")
		if key, value, pair := strings.Cut(name, "="); pair && !strings.HasPrefix(name, `"`) {
			dictionary.params[key] = value
			continue
		}
		if name == "" {
			return nil
		}
		item := limitItem{name: strings.Trim(name, `"`), params: map[string]string{}}
		for _, p := range parts[1:] {
			key, value, _ := strings.Cut(strings.Trim(p, " \t"), "=")
			item.params[key] = value
		}
		out = append(out, item)
	}
	if len(dictionary.params) > 0 {
		out = append(out, dictionary)
	}
	return out
}

// splitQuoted splits at sep outside of quoted strings; ok is false if one does not end.
func splitQuoted(s string, sep byte) (out []string, ok bool) {
	start, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == sep && !quoted:
			out = append(out, s[start:i])
			start = i + 1
		}
	}
	return append(out, s[start:]), !quoted
}
