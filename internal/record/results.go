package record

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/pause"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// FetchDoubts reads back what the args of the unknown writes refer to, so that they are looked up as they were sent.
func (rs *Records) FetchDoubts(ctx context.Context, h *Handle) error {
	for _, s := range h.Run.Steps {
		if s.State != run.Unknown {
			continue
		}
		if err := rs.Fetch(ctx, h, s.Name); err != nil {
			return err
		}
	}
	return nil
}

// readBack reads results by the sequences of their outcomes and gives them to the run.
func (rs *Records) readBack(ctx context.Context, h *Handle, want map[string]uint64) error {
	for name, seq := range want {
		data, err := rs.Store.ReadOutcome(ctx, seq)
		if err != nil && !errors.Is(err, port.ErrNotFound) {
			return err
		}
		var o struct {
			Step     string `json:"step"`
			RunID    string `json:"run_id"`
			Envelope struct {
				Result json.RawMessage `json:"result"`
			} `json:"envelope"`
		}
		if err == nil && (json.Unmarshal(data, &o) != nil || o.Step != name || o.RunID != h.ID.Run) {
			o.Envelope.Result = nil // another stream's message at this sequence
		}
		h.Run.Fetched(name, o.Envelope.Result)
	}
	return nil
}

// FetchAll reads back every result that the record has left in AGENTRUN_RESULTS, for somebody who looks.
func (rs *Records) FetchAll(ctx context.Context, h *Handle) error {
	return rs.readBack(ctx, h, h.Run.Stored())
}

// Fetch reads back the results that a step's references need and that the record has left in AGENTRUN_RESULTS.
func (rs *Records) Fetch(ctx context.Context, h *Handle, step string) error {
	if err := rs.readBack(ctx, h, h.Run.Fetch(step)); err != nil {
		return err
	}
	for name, ref := range h.Run.FetchObjects(step) {
		data, err := rs.Store.GetObject(ctx, ref.Object)
		if err != nil && !errors.Is(err, port.ErrNotFound) {
			return err
		}
		h.Run.Fetched(name, data)
	}
	return nil
}

// InlineResult is up to how many bytes a result travels in outcomes and lies in the record (contract §12), unless the
// server's messages are so small that a third of one is less.
const InlineResult = 256 << 10

func (rs *Records) inline() int {
	if most := rs.messageMax(); most > 0 {
		return min(InlineResult, most/3)
	}
	return InlineResult
}

// Offload keeps a result that is too large for the record in the object store and returns its place; nil if it is small.
// The name comes from the dispatch, so that doing it again changes nothing. What the config keeps secret is redacted, since
// the object can be read by whoever reads the outcome.
//
// It tries again until ctx ends, with growing pauses, and tells retrying (which may be nil) of each failure; port.ErrRefused, at
// once, where trying again is no use.
func (rs *Records) Offload(ctx context.Context, id run.ID, step string, d engine.DispatchID, result json.RawMessage, retrying func(error)) (*envelope.ObjectRef, error) {
	if len(result) <= rs.inline() {
		return nil, nil
	}
	data := rs.redact(result)
	sum := sha256.Sum256(data)
	ref := &envelope.ObjectRef{
		Bucket: port.ObjectsBucket, Object: id.Tenant + "/" + id.Run + "/" + step + "/" + string(d), Size: len(data), SHA256: hex.EncodeToString(sum[:]),
	}
	for tries := (pause.Longer{}); ; {
		err := rs.Store.PutObject(ctx, ref.Object, data)
		if err == nil {
			return ref, nil
		}
		if errors.Is(err, port.ErrRefused) || ctx.Err() != nil {
			return nil, fmt.Errorf("result of %s/%s: %w", id, step, err)
		}
		if retrying != nil {
			retrying(err)
		}
		if !tries.Wait(ctx) {
			return nil, fmt.Errorf("result of %s/%s: %w", id, step, err)
		}
	}
}

var redacted = []byte("[redacted]")

// redact replaces exact occurrences of the config's secrets in what is published.
func (rs *Records) redact(data []byte) []byte {
	if rs.Secrets == nil {
		return data
	}
	for _, s := range rs.Secrets() {
		if bytes.Contains(data, s) {
			data = bytes.ReplaceAll(data, s, redacted)
		}
	}
	return data
}

// Redactions prepares the values of the config for Records.Secrets: each as it is and as JSON writes it.
func Redactions(values []string) [][]byte {
	var out [][]byte
	for _, v := range values {
		out = append(out, []byte(v))
		if quoted, err := strictjson.Marshal(v); err == nil && string(quoted) != `"`+v+`"` {
			out = append(out, quoted[1:len(quoted)-1])
		}
	}
	return out
}
