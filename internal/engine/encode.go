package engine

import (
	"reflect"

	"github.com/agentrun/executor/internal/strictjson"
)

// The record is written twice for every step, so its frequent parts are written by hand, in the form of encoding/json. A
// test fills every field and holds this file against the struct tags; until this file knows a new field, encoding/json
// writes the record, so that no field is ever lost.

var byHand = fields[Run]() == 48 && fields[Step]() == 41 && fields[Owed]() == 19 && fields[Event]() == 16 && fields[Effect]() == 4 &&
	fields[JobRef]() == 4 && fields[Published]() == 3 && fields[End]() == 6 && fields[Lease]() == 6

func fields[T any]() int { return reflect.TypeFor[T]().NumField() }

// bytes writes the record.
func (r *Run) bytes() ([]byte, error) {
	data, err := r.ownBytes()
	if err != nil || !r.foreign {
		return data, err
	}
	return strictjson.AppendForeign(make([]byte, 0, max(r.size, len(data))+64), r, data), nil
}

// ownBytes writes what this build knows of the record.
func (r *Run) ownBytes() ([]byte, error) {
	if !byHand {
		return strictjson.Marshal(r)
	}
	return r.appendJSON(make([]byte, 0, max(r.size, 1536)+512))
}

func (r *Run) appendJSON(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Text("schema", r.Schema)
	o.Text("tenant", r.Tenant)
	o.Text("run_id", r.RunID)
	o.Text("queue", r.Queue)
	o.TextIf("workflow", r.Workflow)
	o.TextIf("owner", r.Owner)
	o.TextIf("actor", r.Actor)
	o.TextIf("intent", r.Intent)
	o.IntIf("priority", int64(r.Priority))
	o.TextIf("traceparent", r.Trace)
	o.IntIf("first", int64(r.First))
	o.Int("episode", int64(r.Episode))
	o.BoolIf("more", r.More)
	o.Time("created_at", int64(r.CreatedAt))
	o.Time("updated_at", int64(r.UpdatedAt))
	o.Time("deadline", int64(r.Deadline))
	o.Value("budget", r.Budget.Append)
	o.Value("spent", r.Spent.Append)
	list(o, "jobs", r.Jobs, func(j *JobRef, buf []byte) ([]byte, error) { return j.append(buf) })
	if r.Steps == nil {
		o.Any("steps", r.Steps)
	} else {
		o.Value("steps", func(buf []byte) ([]byte, error) {
			return strictjson.AppendList(buf, len(r.Steps), func(buf []byte, i int) ([]byte, error) { return r.Steps[i].append(buf) })
		})
	}
	if r.Lease != nil {
		o.Value("lease", r.Lease.append)
	}
	r.appendEnd(o)
	r.appendOwed(o)
	return o.End()
}

// appendEnd writes what a run that goes on mostly has not.
func (r *Run) appendEnd(o *strictjson.Object) {
	if r.Decided != nil {
		o.Any("decided", r.Decided)
	}
	if r.Cancel != nil {
		o.Any("cancel", r.Cancel)
	}
	if e := r.End; e != nil && e.Row == nil && e.Details == nil {
		o.Value("end", func(buf []byte) ([]byte, error) {
			o := strictjson.NewObject(buf)
			o.Text("outcome", string(e.Outcome))
			o.TextIf("step", e.Step)
			o.Time("at", int64(e.At))
			return o.End()
		})
	} else if e != nil {
		o.Any("end", e)
	}
	if r.Letter != nil {
		o.Any("letter", r.Letter)
	}
	o.IntIf("replays", int64(r.Replays))
	if len(r.Answers) > 0 {
		o.Any("answers", r.Answers)
	}
	if r.Invalid != nil {
		o.Any("invalid", r.Invalid)
	}
}

func (r *Run) appendOwed(o *strictjson.Object) {
	o.IntIf("step_n", int64(r.StepN))
	if r.StepPub != (Published{}) {
		o.Value("step_published", r.StepPub.append)
	}
	if r.RunPub != (Published{}) {
		o.Value("run_published", r.RunPub.append)
	}
	list(o, "out", r.Owed, func(w *Owed, buf []byte) ([]byte, error) { return w.append(buf) })
	o.IntIf("refusals", int64(r.Refusals))
	o.BoolIf("restored", r.Restored)
	o.BoolIf("pending", r.Pending)
	o.IntIf("losses", int64(r.Losses))
	list(o, "effects", r.Effects, func(e *Effect, buf []byte) ([]byte, error) { return e.append(buf) })
	if len(r.Evidence) > 0 {
		o.Any("evidence", r.Evidence)
	}
	if len(r.Alarms) > 0 {
		o.Any("alarms", r.Alarms)
	}
	o.IntIf("alarms_published", int64(r.AlarmsPub))
	list(o, "history", r.History, func(e *Event, buf []byte) ([]byte, error) { return e.append(buf) })
	o.IntIf("history_dropped", int64(r.Forgotten))
}

// list writes a list that is not empty.
func list[T any](o *strictjson.Object, key string, values []T, fn func(*T, []byte) ([]byte, error)) {
	if len(values) == 0 {
		return
	}
	o.Value(key, func(buf []byte) ([]byte, error) {
		return strictjson.AppendList(buf, len(values), func(buf []byte, i int) ([]byte, error) { return fn(&values[i], buf) })
	})
}

func (l *Lease) append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Text("holder", l.Holder)
	o.Text("id", l.ID)
	o.Int("renewal", int64(l.Renewal))
	o.Float("seconds", l.Seconds)
	o.TextIf("worker", l.Worker)
	return o.End()
}

func (j *JobRef) append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Int("seq", int64(j.Seq))
	o.Time("at", int64(j.At))
	o.BoolIf("closer", j.Closer)
	return o.End()
}

func (p *Published) append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Int("n", int64(p.N))
	o.Int("seq", int64(p.Seq))
	return o.End()
}

func (s *Step) append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Text("step", s.Name)
	o.Text("tool", s.Tool)
	o.TextIf("effect", string(s.Effect))
	o.TextIf("owner", s.Owner)
	o.ArgsIf("args", s.Args)
	o.Text("digest", s.Digest)
	o.BoolIf("optional", s.Optional)
	o.BoolIf("parallel", s.Parallel)
	o.Text("state", string(s.State))
	o.TextIf("stopped_by", s.StoppedBy)
	o.BoolIf("waived", s.Waived)
	o.BoolIf("unchecked", s.Unchecked)
	o.IntIf("attempt", int64(s.Attempt))
	o.IntIf("used", int64(s.Used))
	o.IntIf("failures", int64(s.Failures))
	o.IntIf("losses", int64(s.Losses))
	o.IntIf("proposal", int64(s.Proposal))
	o.IntIf("proposals", int64(s.Proposals))
	o.TextIf("dispatch", string(s.Dispatch))
	o.TextIf("key", s.Key)
	o.TextIf("sent", s.SentArgs)
	o.TimeIf("first_sent", int64(s.FirstSent))
	o.TextIf("doubted", string(s.Doubted))
	o.BoolIf("unsettled", s.Unsettled)
	o.BoolIf("disputed", s.Disputed)
	o.TimeIf("not_before", int64(s.NotBefore))
	o.TimeIf("wait_from", int64(s.WaitFrom))
	o.BoolIf("postponed", s.Postponed)
	if s.Doubt != nil {
		o.Any("doubt", s.Doubt)
	}
	if s.Fail != nil {
		o.Any("fail", s.Fail)
	}
	o.TextIf("approved", s.Approved)
	o.RawIf("asked", s.Asked)
	o.TextIf("asked_digest", s.AskedSum)
	o.RawIf("result", s.Result)
	o.BoolIf("result_omitted", s.Omitted)
	if s.ResultRef != nil {
		o.Any("result_ref", s.ResultRef)
	}
	o.IntIf("outcome_seq", int64(s.OutcomeSeq))
	o.TextIf("proof", s.Proof)
	o.TimeIf("proven_at", int64(s.ProvenAt))
	o.TextIf("evidence_ref", s.EvidRef)
	return o.End()
}

func (w *Owed) append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Int("n", int64(w.N))
	o.Text("scope", string(w.Scope))
	o.Text("outcome", string(w.Outcome))
	o.TextIf("step", w.Step)
	o.TextIf("tool", w.Tool)
	o.TextIf("failed_step", w.Failed)
	if w.Row != nil {
		o.Value("row", w.Row.Append)
	}
	if len(w.Details) > 0 {
		o.Any("details", w.Details)
	}
	o.IntIf("attempt", int64(w.Attempt))
	o.IntIf("left", int64(w.Left))
	o.TimeIf("not_before", int64(w.NotBefore))
	o.IntIf("wait_ms", w.WaitMS)
	o.IntIf("effects", int64(w.Effects))
	if len(w.Remaining) > 0 {
		o.Texts("remaining", w.Remaining)
	}
	o.Value("spent", w.Spent.Append)
	o.Int("elapsed_ms", w.ElapsedMS)
	o.Time("at", int64(w.At))
	return o.End()
}

func (e *Effect) append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Text("step", e.Step)
	o.Time("at", int64(e.At))
	o.TextIf("evidence_ref", e.EvidenceRef)
	return o.End()
}

func (e *Event) append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Time("at", int64(e.At))
	o.Text("kind", e.Kind)
	o.TextIf("by", e.By)
	o.TextIf("step", e.Step)
	o.IntIf("attempt", int64(e.Attempt))
	o.TextIf("code", string(e.Code))
	o.TextIf("commit_state", string(e.CommitState))
	o.TextIf("reason", e.Reason)
	o.TimeIf("started_at", int64(e.Started))
	o.TextIf("dispatch", string(e.Dispatch))
	o.TimeIf("sent_at", int64(e.SentAt))
	o.TimeIf("answered_at", int64(e.AnsweredAt))
	o.IntIf("http_status", int64(e.HTTPStatus))
	o.IntIf("mcp_code", int64(e.MCPCode))
	o.TextIf("owner", e.Owner)
	return o.End()
}
