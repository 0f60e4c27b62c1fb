package connector

import (
	"regexp"
	"sync/atomic"
	"time"

	"github.com/dlclark/regexp2/v2"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// patternPatience is how long a backtracking match may take, about. RE2's take time in proportion and need no bound.
const patternPatience = 100 * time.Millisecond

// compilePattern reads a pattern of a schema. JSON Schema's are those of ECMA 262, and libraries write what their own language
// has: look-ahead (zod), \Z and named groups (Python). What RE2 can read it matches, in linear time; what it lacks is
// matched by backtracking, as ECMA has it or else as Perl and Python do.
func compilePattern(p string) (jsonschema.Regexp, error) {
	linear, err := regexp.Compile(p)
	if err == nil {
		return linear, nil
	}
	for _, dialect := range []regexp2.RegexOptions{regexp2.ECMAScript | regexp2.Unicode, regexp2.ECMAScript, regexp2.None, regexp2.RE2} {
		if re, err := regexp2.Compile(p, dialect); err == nil {
			re.MatchTimeout = patternPatience
			return &backtracking{Regexp: re}, nil
		}
	}
	return nil, err // RE2's word for what is wrong, which nobody else could read either
}

// backtracking is a pattern whose match may take for ever. A value that it cannot be held against in time does not fit, and
// for as long again no other does: a list of such values costs no more than one.
type backtracking struct {
	*regexp2.Regexp
	weary atomic.Int64 // until when, in nanoseconds since began
}

var began = time.Now()

func (b *backtracking) MatchString(s string) bool {
	if int64(time.Since(began)) < b.weary.Load() {
		return false
	}
	ok, err := b.Regexp.MatchString(s)
	if err != nil {
		b.weary.Store(int64(time.Since(began) + patternPatience))
	}
	return err == nil && ok
}
