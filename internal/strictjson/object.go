package strictjson

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Object writes a JSON object member by member, in the form in which Marshal writes it: for the few messages that are
// written for every step. Its methods with If leave a member out that has its zero value.
type Object struct {
	buf   []byte
	first bool
	err   error
}

// NewObject begins an object at the end of buf.
func NewObject(buf []byte) *Object { return &Object{buf: append(buf, '{'), first: true} }

// End closes the object and returns the whole buffer, with the first error.
func (o *Object) End() ([]byte, error) { return append(o.buf, '}'), o.err }

func (o *Object) key(k string) {
	if !o.first {
		o.buf = append(o.buf, ',')
	}
	o.first = false
	o.buf = append(append(append(o.buf, '"'), k...), '"', ':')
}

// Text writes a string.
func (o *Object) Text(k, v string) {
	o.key(k)
	o.text(v)
}

// TextIf writes a string that is not empty.
func (o *Object) TextIf(k, v string) {
	if v != "" {
		o.Text(k, v)
	}
}

// text writes a string; what needs an escape goes through encoding/json.
func (o *Object) text(v string) {
	for i := 0; i < len(v); i++ {
		if c := v[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			b, err := Marshal(v)
			o.fail(err)
			o.buf = append(o.buf, b...)
			return
		}
	}
	o.buf = append(append(append(o.buf, '"'), v...), '"')
}

// Int writes a number.
func (o *Object) Int(k string, v int64) {
	o.key(k)
	o.buf = strconv.AppendInt(o.buf, v, 10)
}

// IntIf writes a number that is not 0.
func (o *Object) IntIf(k string, v int64) {
	if v != 0 {
		o.Int(k, v)
	}
}

// Float writes a number that may have a fraction.
func (o *Object) Float(k string, v float64) {
	if v != 0 && !(v >= 0.001 && v < 1e15) {
		o.Any(k, v) // NaN too, which is an error
		return
	}
	o.key(k)
	o.buf = strconv.AppendFloat(o.buf, v, 'f', -1, 64)
}

// Bool writes a truth value.
func (o *Object) Bool(k string, v bool) {
	o.key(k)
	o.buf = strconv.AppendBool(o.buf, v)
}

// BoolIf writes true, or nothing.
func (o *Object) BoolIf(k string, v bool) {
	if v {
		o.Bool(k, v)
	}
}

// Time writes a time as AppendTime does.
func (o *Object) Time(k string, ms int64) {
	o.key(k)
	o.buf = AppendTime(o.buf, ms)
}

// TimeIf writes a time that is set.
func (o *Object) TimeIf(k string, ms int64) {
	if ms != 0 {
		o.Time(k, ms)
	}
}

// RawIf writes a JSON value as it is, without its white space; an empty one is left out, and what is no JSON is an error.
func (o *Object) RawIf(k string, v json.RawMessage) {
	if len(v) == 0 {
		return
	}
	if !json.Valid(v) {
		o.fail(fmt.Errorf("%s is not JSON", k))
		return
	}
	o.key(k)
	o.buf = append(o.buf, Compact(v)...)
}

// ArgsIf writes args, which were checked when they came.
func (o *Object) ArgsIf(k string, a *Args) {
	if text := a.Text(); len(text) > 0 {
		o.key(k)
		o.buf = append(o.buf, text...)
	}
}

// Any writes a value as Marshal does.
func (o *Object) Any(k string, v any) {
	b, err := Marshal(v)
	o.fail(err)
	o.key(k)
	o.buf = append(o.buf, b...)
}

// Value writes what fn appends: a nested object or list.
func (o *Object) Value(k string, fn func(buf []byte) ([]byte, error)) {
	o.key(k)
	b, err := fn(o.buf)
	o.fail(err)
	o.buf = b
}

// Texts writes a list of strings; nil is null.
func (o *Object) Texts(k string, list []string) {
	o.key(k)
	if list == nil {
		o.buf = append(o.buf, "null"...)
		return
	}
	o.buf = append(o.buf, '[')
	for i, v := range list {
		if i > 0 {
			o.buf = append(o.buf, ',')
		}
		o.text(v)
	}
	o.buf = append(o.buf, ']')
}

func (o *Object) fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

// AppendList appends a list whose i-th value fn appends.
func AppendList(buf []byte, n int, fn func(buf []byte, i int) ([]byte, error)) ([]byte, error) {
	buf = append(buf, '[')
	for i := range n {
		if i > 0 {
			buf = append(buf, ',')
		}
		var err error
		if buf, err = fn(buf, i); err != nil {
			return buf, err
		}
	}
	return append(buf, ']'), nil
}

// AppendTime writes a moment in milliseconds since the Unix epoch in the RFC 3339 form of the contract; 0 is not set and null.
func AppendTime(b []byte, ms int64) []byte {
	if ms == 0 {
		return append(b, "null"...)
	}
	at := time.UnixMilli(ms).UTC()
	year, month, day := at.Date()
	if year < 1000 || year > 9999 {
		b = append(b, '"')
		return append(at.AppendFormat(b, "2006-01-02T15:04:05.000Z"), '"')
	}
	hour, minute, second := at.Clock()
	milli := at.Nanosecond() / 1_000_000
	two := func(v int) (byte, byte) { return '0' + byte(v/10), '0' + byte(v%10) }
	b = append(strconv.AppendInt(append(b, '"'), int64(year), 10), "-00-00T00:00:00.000Z\""...)
	p := b[len(b)-21:]
	p[1], p[2] = two(int(month))
	p[4], p[5] = two(day)
	p[7], p[8] = two(hour)
	p[10], p[11] = two(minute)
	p[13], p[14] = two(second)
	p[16] = '0' + byte(milli/100)
	p[17], p[18] = two(milli % 100)
	return b
}
