package strictjson

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"sync/atomic"
)

// Args are the args of a step as they travel from the job to the wire: the compact text of a value that was checked once, and
// what was learnt of it, which nobody has to find out again. They never change. Nil are args that are not there. Safe for
// concurrent use: who asks first at the same time as another does the same work to the same end.
type Args struct {
	text   json.RawMessage
	sound  bool // the text passed CheckJSON
	depth  int
	sum    atomic.Pointer[argsSum]
	values atomic.Pointer[map[string]any]
}

type argsSum struct {
	tool string
	sum  [sha256.Size]byte
}

// ParseArgs checks args. The error is CheckJSON's.
func ParseArgs(data []byte, b Bounds) (*Args, error) {
	if err := CheckJSON(data, b); err != nil {
		return nil, err
	}
	return CheckedArgs(data), nil
}

// CheckedArgs takes args that passed CheckJSON, alone or as a part of a larger text.
func CheckedArgs(data []byte) *Args {
	text, depth := compact(data)
	return &Args{text: text, depth: depth, sound: true}
}

// UnmarshalJSON takes args from a record. Those that CheckJSON refuses are kept, but have no values and all the same digest.
func (a *Args) UnmarshalJSON(data []byte) error {
	text, depth := compact(bytes.Clone(data))
	a.text, a.depth, a.sound = text, depth, CheckJSON(data, Bounds{}) == nil
	return nil
}

// MarshalJSON writes the text.
func (a *Args) MarshalJSON() ([]byte, error) {
	if len(a.text) == 0 {
		return []byte("null"), nil
	}
	return a.text, nil
}

// Text is the compact text, nil for args that are not there.
func (a *Args) Text() json.RawMessage {
	if a == nil {
		return nil
	}
	return a.text
}

// Depth is the number of containers around the innermost value: 0 for a scalar, 1 for [] and {"a":1}.
func (a *Args) Depth() int { return a.depth }

// Sum names tool and args exactly: the SHA-256 of the tool's name, a newline and the canonical form of the args (contract §9).
func (a *Args) Sum(tool string) [sha256.Size]byte {
	if a == nil {
		a = new(Args)
	}
	if known := a.sum.Load(); known != nil && known.tool == tool {
		return known.sum
	}
	text := make([]byte, 0, len(tool)+1+len(a.text))
	text = append(append(text, tool...), '\n')
	if a.sound {
		text, _ = appendCanonical(text, a.text, 0)
	}
	known := &argsSum{tool, sha256.Sum256(text)}
	a.sum.Store(known)
	return known.sum
}

// Digest is the Sum in 64 lower-case hex digits.
func (a *Args) Digest(tool string) string {
	sum := a.Sum(tool)
	return hex.EncodeToString(sum[:])
}

// Values are the args as Decode reads them, which all who ask share and nobody changes; args that are not there are an empty
// object. ok is false for what is no object, and for what Decode does not take.
func (a *Args) Values() (values map[string]any, ok bool) {
	if a == nil || len(a.text) == 0 {
		return map[string]any{}, true
	}
	if known := a.values.Load(); known != nil {
		return *known, true
	}
	if !a.sound || a.text[0] != '{' {
		return nil, false
	}
	v, ok := Decode(a.text)
	if !ok {
		return nil, false
	}
	values = v.(map[string]any)
	a.values.Store(&values)
	return values, true
}

// ArgsDigest is the Digest of args that nobody has checked yet.
func ArgsDigest(tool string, args json.RawMessage) string {
	a, _ := ParseArgs(args, Bounds{})
	return a.Digest(tool)
}
