package journal

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
)

// Values are written by hand, not as JSON: a job writes two, and the product's whole cost per job is counted in tens of
// microseconds. A value begins with its version and the entry's time (Sweep reads no more than that), then the fields in
// a fixed order; a text is its length and its bytes, a raw JSON value its length plus one, 0 for none.
const (
	intentVersion = 1
	effectVersion = 1
	headBytes     = 1 + 8
)

// errVersion: a value of a later version than this build reads.
var errVersion = errors.New("a later version")

var errShort = errors.New("the value ends too early")

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendRaw(b []byte, r json.RawMessage) []byte {
	if r == nil {
		return append(b, 0)
	}
	return append(binary.AppendUvarint(b, uint64(len(r))+1), r...)
}

func appendHead(b []byte, version byte, at envelope.Time) []byte {
	return binary.BigEndian.AppendUint64(append(b, version), uint64(at))
}

// timeOf reads only the time of a value.
func timeOf(value []byte) envelope.Time {
	if len(value) < headBytes {
		return 0
	}
	return envelope.Time(binary.BigEndian.Uint64(value[1:]))
}

func limitFields(l *budget.Limits) [7]*int64 {
	return [...]*int64{
		&l.MaxTurns, &l.MaxToolCalls, &l.MaxAttemptsPerStep, &l.MaxElapsedMillis,
		&l.MaxInputTokens, &l.MaxOutputTokens, &l.MaxEstimatedCostMinorUnits,
	}
}

func intentTexts(i *engine.Intent) [9]*string {
	return [...]*string{&i.Tenant, &i.RunID, &i.Queue, &i.Workflow, &i.Owner, &i.Actor, &i.Purpose, &i.Step, &i.Tool}
}

func encodeIntent(i *engine.Intent) []byte {
	b := make([]byte, 0, 192+len(i.Args)+len(i.Proposed)+len(i.Purpose))
	b = appendHead(b, intentVersion, i.At)
	for _, s := range intentTexts(i) {
		b = appendText(b, *s)
	}
	b = appendText(b, i.Key)
	for _, n := range limitFields(&i.Budget) {
		b = binary.AppendVarint(b, *n)
	}
	b = binary.AppendVarint(b, int64(i.Attempt))
	b = binary.AppendVarint(b, int64(i.Proposal))
	b = append(b, flag(i.Optional, 1))
	b = appendRaw(b, i.Args)
	return appendRaw(b, i.Proposed)
}

func decodeIntent(d engine.DispatchID, b []byte) (engine.Intent, error) {
	i := engine.Intent{Dispatch: d}
	r := reader{rest: b}
	i.At = r.head(intentVersion)
	for _, s := range intentTexts(&i) {
		*s = r.text()
	}
	i.Key = r.text()
	for _, n := range limitFields(&i.Budget) {
		*n = r.varint()
	}
	i.Attempt = int(r.varint())
	i.Proposal = int(r.varint())
	i.Optional = r.flags(1)&1 != 0
	i.Args = r.raw()
	i.Proposed = r.raw()
	if err := r.end(); err != nil {
		return engine.Intent{}, fmt.Errorf("intent of dispatch %s: %w", d, err)
	}
	return i, nil
}

const (
	replyOK = 1 << iota
	replyLookUp
	replyNotSent
	replyNoReply
	replyRef // the result's place follows the other fields
	replyAll = replyOK | replyLookUp | replyNotSent | replyNoReply | replyRef
)

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

// encodeEffect leaves Reply.Seen out: it decides nothing, and one field more would keep the version before from opening
// the file.
func encodeEffect(e *engine.EffectFact) ([]byte, error) {
	p := &e.Reply
	b := make([]byte, 0, 128+len(p.Result))
	b = appendHead(b, effectVersion, e.At)
	b = append(b, flag(p.OK, replyOK)|flag(p.LookUp, replyLookUp)|flag(p.NotSent, replyNotSent)|flag(p.NoReply, replyNoReply)|flag(p.Ref != nil, replyRef))
	b = appendRaw(b, p.Result)
	b = appendText(b, p.EvidenceRef)
	for _, s := range [...]string{
		string(p.Row.Code), string(p.Row.Category), p.Row.ReasonCode, string(p.Row.CommitState),
		string(p.Row.Directive), string(p.Row.NextAction), string(p.Row.Outcome),
	} {
		b = appendText(b, s)
	}
	b = binary.AppendVarint(b, p.RetryAfter)
	var details json.RawMessage
	if p.Details != nil {
		var err error
		if details, err = json.Marshal(p.Details); err != nil {
			return nil, fmt.Errorf("details: %w", err)
		}
	}
	b = appendRaw(b, details)
	if p.Ref != nil {
		b = appendText(b, p.Ref.Bucket)
		b = appendText(b, p.Ref.Object)
		b = binary.AppendVarint(b, int64(p.Ref.Size))
		b = appendText(b, p.Ref.SHA256)
	}
	return b, nil
}

func decodeEffect(d engine.DispatchID, b []byte) (engine.EffectFact, error) {
	e := engine.EffectFact{Dispatch: d}
	p := &e.Reply
	r := reader{rest: b}
	e.At = r.head(effectVersion)
	f := r.flags(replyAll)
	p.OK, p.LookUp, p.NotSent, p.NoReply = f&replyOK != 0, f&replyLookUp != 0, f&replyNotSent != 0, f&replyNoReply != 0
	p.Result = r.raw()
	p.EvidenceRef = r.text()
	p.Row = envelope.Row{
		Code: envelope.Code(r.text()), Category: envelope.Category(r.text()), ReasonCode: r.text(),
		CommitState: envelope.CommitState(r.text()), Directive: envelope.Directive(r.text()),
		NextAction: envelope.NextAction(r.text()), Outcome: envelope.Word(r.text()),
	}
	p.RetryAfter = r.varint()
	details := r.raw()
	if f&replyRef != 0 {
		p.Ref = &envelope.ObjectRef{Bucket: r.text(), Object: r.text(), Size: int(r.varint()), SHA256: r.text()}
	}
	err := r.end()
	if err == nil && details != nil {
		err = json.Unmarshal(details, &p.Details) // which keeps every digit of numbers
	}
	if err != nil {
		return engine.EffectFact{}, fmt.Errorf("effect of dispatch %s: %w", d, err)
	}
	return e, nil
}

// reader takes fields off a value; after the first error it gives zero values, and end reports the error. What it returns
// is copied, so it stays valid when the transaction's memory is gone.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err, r.rest = err, nil
	}
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.fail(errShort)
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) head(version byte) envelope.Time {
	h := r.take(headBytes)
	if h == nil {
		return 0
	}
	if h[0] > version {
		r.fail(fmt.Errorf("%w: the value has version %d, this build reads %d", errVersion, h[0], version))
		return 0
	}
	if h[0] != version {
		r.fail(fmt.Errorf("the value has version %d, this program reads %d", h[0], version))
		return 0
	}
	return timeOf(h)
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) text() string { return string(r.take(r.uvarint())) }

func (r *reader) raw() json.RawMessage {
	n := r.uvarint()
	if n == 0 {
		return nil
	}
	return append(json.RawMessage{}, r.take(n-1)...)
}

func (r *reader) flags(known byte) byte {
	b := r.take(1)
	if b == nil {
		return 0
	}
	if b[0]&^known != 0 {
		r.fail(fmt.Errorf("flags %#x are not known", b[0]))
		return 0
	}
	return b[0]
}

func (r *reader) end() error {
	if r.err == nil && len(r.rest) > 0 {
		return fmt.Errorf("%d bytes follow the last field", len(r.rest))
	}
	return r.err
}
