package record

import (
	"context"
	"errors"
	"strings"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/pkg/run"
)

// Unaddressed is the run under which a job on a subject whose tokens are no identifiers is answered (contract §3).
func Unaddressed(tenant, subject string, payload []byte) run.ID {
	if !run.ValidID(tenant) {
		tenant = port.InvalidTenant
	}
	return run.ID{Tenant: tenant, Run: engine.InvalidRunID(subject, payload)}
}

// AnswerUnaddressed records a job whose subject names no queue: its letter follows from the record. The same job again is
// answered by the same letter. Afterwards the job can go.
func (rs *Records) AnswerUnaddressed(ctx context.Context, subject string, m engine.Message, d engine.Defaults) error {
	tenant := ""
	if tokens := strings.Split(subject, "."); len(tokens) > 3 {
		tenant = tokens[3]
	}
	m.Queue = port.InvalidTenant // the record's queue is an identifier's place
	id := Unaddressed(tenant, subject, m.Data)
	switch _, err := rs.Load(ctx, id); {
	case err == nil:
		return nil // it has come before, and its letter follows from the record
	case !errors.Is(err, port.ErrNotFound):
		return err
	}
	return rs.Save(ctx, &Handle{ID: id, Run: engine.CreateUnaddressed(id, m, d, rs.Now())})
}
