package run

import (
	"encoding/json"
	"fmt"
	"regexp"
	"unicode"
	"unicode/utf8"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/envelope"
)

// JobSchema is the schema name of a job.
const JobSchema = "agentrun.job/v1"

// Sizes of contract §12.
const (
	MaxJobBytes    = 256 << 10
	MaxJobSteps    = 256
	MaxArgsDepth   = 64
	MaxArgsBytes   = 256 << 10
	MaxRecordBytes = 768 << 10
	maxIntent      = 1 << 10
	maxActor       = 256
	maxJobDepth    = MaxArgsDepth + 8 // args lie three levels down
)

// Job appends steps to a run (contract §3).
type Job struct {
	Schema   string          `json:"schema"`
	Tenant   string          `json:"tenant"`
	RunID    string          `json:"run_id"`
	Workflow string          `json:"workflow,omitempty"`
	Owner    string          `json:"owner,omitempty"`
	Actor    string          `json:"actor,omitempty"`
	Intent   string          `json:"intent,omitempty"`
	Budget   *budget.Request `json:"budget,omitempty"`
	Usage    *budget.Usage   `json:"usage,omitempty"`
	Steps    []JobStep       `json:"steps,omitempty"`
	More     bool            `json:"more,omitempty"`
	Parallel bool            `json:"parallel,omitempty"`
	Priority *int            `json:"priority,omitempty"`
	Waive    []string        `json:"waive,omitempty"`
	Deadline Time            `json:"deadline,omitempty"`
}

// JobStep is one step of a job.
type JobStep struct {
	Step     string          `json:"step"`
	Tool     string          `json:"tool"`
	Args     json.RawMessage `json:"args,omitempty"`
	Optional bool            `json:"optional,omitempty"`
}

var (
	identifier = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	toolName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}$`)
)

// ValidID reports whether s is an identifier of contract §1: one subject token without wildcards.
func ValidID(s string) bool { return identifier.MatchString(s) }

// ValidTool reports whether s is a tool name of contract §1.
func ValidTool(s string) bool { return toolName.MatchString(s) }

// ValidActor reports whether s is an actor of contract §1.
func ValidActor(s string) bool {
	if len(s) > maxActor || !utf8.ValidString(s) {
		return false
	}
	for _, c := range s {
		if unicode.IsControl(c) {
			return false
		}
	}
	return true
}

// JobError says why a job is JOB_INVALID: where, as a JSON Pointer into the job ("" is the job itself), and what. The
// text is the runtime's own and never quotes the job.
type JobError struct{ Field, Problem string }

func (e *JobError) Error() string {
	if e.Field == "" {
		return "job: " + e.Problem
	}
	return "job" + e.Field + ": " + e.Problem
}

func jobError(field, format string, args ...any) *JobError {
	return &JobError{field, fmt.Sprintf(format, args...)}
}

// ParseJob reads and checks a job that came for a run: tenant and run_id of the subject are the authority. The error is a
// *JobError. Unknown fields are ignored; field names are matched exactly.
func ParseJob(data []byte, id ID) (*Job, error) {
	if len(data) > MaxJobBytes {
		return nil, jobError("", "larger than %d bytes", MaxJobBytes)
	}
	if err := envelope.CheckJSON(data, envelope.Bounds{MaxBytes: MaxJobBytes, MaxDepth: maxJobDepth}); err != nil {
		return nil, jobError("", "%s", err)
	}
	j := new(Job)
	var bad *JobError
	if !envelope.Members(data, func(key string, v json.RawMessage) bool {
		bad = j.field(key, v)
		return bad == nil
	}) && bad == nil {
		bad = jobError("", "is not a JSON object")
	}
	if bad == nil {
		bad = j.check(id)
	}
	if bad != nil {
		return nil, bad
	}
	return j, nil
}

func (j *Job) field(key string, v json.RawMessage) *JobError {
	var into any
	switch key {
	case "schema":
		into = &j.Schema
	case "tenant":
		into = &j.Tenant
	case "run_id":
		into = &j.RunID
	case "workflow":
		into = &j.Workflow
	case "owner":
		into = &j.Owner
	case "actor":
		into = &j.Actor
	case "intent":
		into = &j.Intent
	case "budget":
		into = &j.Budget
	case "usage":
		into = &j.Usage
	case "more":
		into = &j.More
	case "parallel":
		into = &j.Parallel
	case "priority":
		into = &j.Priority
	case "waive":
		into = &j.Waive
	case "deadline":
		into = &j.Deadline
	case "steps":
		return j.steps(v)
	default:
		return nil
	}
	if err := json.Unmarshal(v, into); err != nil {
		return jobError("/"+key, "has the wrong type or an impossible value")
	}
	return nil
}

func (j *Job) steps(v json.RawMessage) *JobError {
	var raw []json.RawMessage
	if err := json.Unmarshal(v, &raw); err != nil {
		return jobError("/steps", "is not a list")
	}
	if len(raw) > MaxJobSteps {
		return jobError("/steps", "has more than %d steps", MaxJobSteps)
	}
	j.Steps = make([]JobStep, len(raw))
	for i := range raw {
		s := &j.Steps[i]
		var bad *JobError
		ok := envelope.Members(raw[i], func(key string, v json.RawMessage) bool {
			var err error
			switch key {
			case "step":
				err = json.Unmarshal(v, &s.Step)
			case "tool":
				err = json.Unmarshal(v, &s.Tool)
			case "optional":
				err = json.Unmarshal(v, &s.Optional)
			case "args":
				s.Args = envelope.Compact(v)
			}
			if err != nil {
				bad = jobError(fmt.Sprintf("/steps/%d/%s", i, key), "has the wrong type")
			}
			return bad == nil
		})
		if bad != nil {
			return bad
		}
		if !ok {
			return jobError(fmt.Sprintf("/steps/%d", i), "is not an object")
		}
	}
	return nil
}

func (j *Job) check(id ID) *JobError {
	switch {
	case j.Schema != JobSchema:
		return jobError("/schema", "must be %s", JobSchema)
	case j.Tenant != id.Tenant:
		return jobError("/tenant", "is not the tenant of the subject")
	case j.RunID != id.Run:
		return jobError("/run_id", "is not the run_id of the subject")
	case j.Owner != "" && !ValidID(j.Owner):
		return jobError("/owner", "is not an identifier")
	case !ValidActor(j.Actor):
		return jobError("/actor", "must be at most %d bytes without control characters", maxActor)
	case len(j.Workflow) > 128 || !ValidActor(j.Workflow):
		return jobError("/workflow", "must be at most 128 bytes without control characters")
	case len(j.Intent) > maxIntent:
		return jobError("/intent", "is longer than %d bytes", maxIntent)
	case j.Priority != nil && (*j.Priority < 0 || *j.Priority > 9):
		return jobError("/priority", "must be between 0 and 9")
	}
	if err := j.Budget.Validate(); err != nil {
		return jobError("", "%s", err)
	}
	if err := j.Usage.Validate(); err != nil {
		return jobError("", "%s", err)
	}
	seen := make(map[string]bool, len(j.Steps))
	for i := range j.Steps {
		s := &j.Steps[i]
		at := func(f string) string { return fmt.Sprintf("/steps/%d/%s", i, f) }
		if len(s.Args) == 0 || string(s.Args) == "null" {
			s.Args = json.RawMessage("{}")
		}
		switch {
		case !ValidID(s.Step):
			return jobError(at("step"), "is not an identifier")
		case seen[s.Step]:
			return jobError(at("step"), "is named twice in this job")
		case !ValidTool(s.Tool):
			return jobError(at("tool"), "is not a tool name")
		case s.Args[0] != '{':
			return jobError(at("args"), "is not an object")
		case envelope.Depth(s.Args) > MaxArgsDepth:
			return jobError(at("args"), "is nested deeper than %d", MaxArgsDepth)
		}
		seen[s.Step] = true
	}
	waived := make(map[string]bool, len(j.Waive))
	for i, w := range j.Waive {
		if waived[w] {
			return jobError(fmt.Sprintf("/waive/%d", i), "is named twice")
		}
		waived[w] = true
	}
	return nil
}
