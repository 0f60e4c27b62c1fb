package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// ErrNewer: a newer build wrote the record, in a form that this one does not know. It must be left as it is.
var ErrNewer = errors.New("written by a newer version")

// ErrBroken: the stored record breaks a rule (a fault of another build, an edit by hand). It must be left as it is until a
// person settles it: what is decided on it could be a second write.
var ErrBroken = errors.New("breaks a rule")

// ErrUnreadable: what is stored is no record of any version. It is ErrBroken, too.
var ErrUnreadable = fmt.Errorf("cannot be read, which %w", ErrBroken)

// Decode reads a record and holds it against the rules, so that whoever goes on from it can take a broken rule for its own
// fault: ErrBroken. It is as DecodeAsIs otherwise.
func Decode(data []byte) (*Run, error) {
	r, err := DecodeAsIs(data)
	if err != nil {
		return nil, err
	}
	if v := r.Violations(); len(v) > 0 {
		return nil, fmt.Errorf("run record %s/%s %w: %w", r.Tenant, r.RunID, ErrBroken, v[0])
	}
	return r, nil
}

// DecodeAsIs reads a record, whole or not, to show it. Members that it does not know stay with their object and are written again with it. A record that
// this build could not write again without loss or would misread is ErrNewer: one of another version's schema, with an unknown state
// or outcome, or with an unknown member in a closed object (limits, spend, a row of the table of codes, a result's place).
func DecodeAsIs(data []byte) (*Run, error) {
	r := new(Run)
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	err := strict.Decode(r)
	if err == nil {
		_, err = strict.Token()
		if errors.Is(err, io.EOF) {
			err = nil
		} else {
			err = errors.New("something follows the record")
		}
	}
	if err != nil || r.Schema != RecordSchema {
		if r, err = decodeForeign(data); err != nil {
			return nil, err
		}
	}
	if what := r.unknownWord(); what != "" {
		return nil, fmt.Errorf("run record %s/%s is %w: %s", r.Tenant, r.RunID, ErrNewer, what)
	}
	r.size = len(data)
	return r, nil
}

// decodeForeign reads a record that is not exactly what this build writes, or says what is wrong with it.
func decodeForeign(data []byte) (*Run, error) {
	var name struct {
		Schema string `json:"schema"`
		Tenant string `json:"tenant"`
		RunID  string `json:"run_id"`
	}
	if err := json.Unmarshal(data, &name); err != nil {
		return nil, fmt.Errorf("run record %w: %w", ErrUnreadable, err)
	}
	if !strings.HasPrefix(name.Schema, recordSchemas) {
		return nil, fmt.Errorf("run record %w: its schema is %q", ErrUnreadable, name.Schema) // of no version
	}
	if name.Schema != RecordSchema {
		return nil, fmt.Errorf("run record %s/%s is %w: its schema is %q, this build reads %s", name.Tenant, name.RunID, ErrNewer, name.Schema, RecordSchema)
	}
	r := new(Run)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("run record %w: %w", ErrUnreadable, err)
	}
	found, err := strictjson.KeepForeign(r, data)
	if err != nil {
		return nil, fmt.Errorf("run record %s/%s is %w: %w", r.Tenant, r.RunID, ErrNewer, err)
	}
	r.foreign = found
	return r, nil
}

// unknownWord names the first state or outcome that this build does not know; "" if there is none.
func (r *Run) unknownWord() string {
	for _, s := range r.Steps {
		switch s.State {
		case run.Ready, run.Executing, run.Waiting, run.Unknown, run.OK, run.Fatal, run.NeedsHuman, run.Cancelled:
		default:
			return fmt.Sprintf("step %s has the state %q", s.Name, s.State)
		}
		if s.Effect != "" && s.Effect != envelope.Read && s.Effect != envelope.Write {
			return fmt.Sprintf("step %s has the effect %q", s.Name, s.Effect)
		}
	}
	if d := r.Decided; d != nil {
		switch d.Why {
		case ByStep, ByBudget, ByTime, ByCancel:
		default:
			return fmt.Sprintf("its end is decided by %q", d.Why)
		}
	}
	if r.End != nil && !known(r.End.Outcome) {
		return fmt.Sprintf("it ended %q", r.End.Outcome)
	}
	for i := range r.Owed {
		o := &r.Owed[i]
		if !known(o.Outcome) || o.Scope != envelope.StepScope && o.Scope != envelope.RunScope {
			return fmt.Sprintf("it owes an outcome %q of scope %q", o.Outcome, o.Scope)
		}
	}
	return ""
}

func known(w envelope.Word) bool {
	switch w {
	case envelope.OK, envelope.Retryable, envelope.UnknownNow, envelope.NeedsHuman, envelope.Fatal, envelope.Cancelled:
		return true
	}
	return false
}
