// Package run has the words of a run: the job that publishers send, the view that operators get, and what the rules ask of
// a tool. The rules themselves are the runtime's own, and nothing here knows them.
package run

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/budget"
)

// JobSchema is the schema name of a job.
const JobSchema = "agentrun.job/v1"

// Sizes of contract §12.
const (
	MaxJobBytes   = 256 << 10
	MaxJobSteps   = 256
	MaxArgsDepth  = 64
	MaxArgsBytes  = 256 << 10
	maxIntent     = 1 << 10
	MaxActorBytes = 256
	maxJobDepth   = MaxArgsDepth + 8 // args lie three levels down
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

	checked *strictjson.Args
}

// Checked is for the runtime: the args as ParseJob checked them, nil of a step that it has not read.
func (s *JobStep) Checked() *strictjson.Args { return s.checked }

// ValidID reports whether s is an identifier of contract §1, [A-Za-z0-9][A-Za-z0-9_-]{0,63}: one subject token without
// wildcards.
func ValidID(s string) bool { return named(s, 64, "_-") }

// ValidTool reports whether s is a tool name of contract §1, [A-Za-z0-9][A-Za-z0-9_./-]{0,127}.
func ValidTool(s string) bool { return named(s, 128, "_./-") }

// named: at most limit letters, digits and marks, no mark first.
func named(s string, limit int, marks string) bool {
	for i := range len(s) {
		c := s[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alphanumeric && (i == 0 || strings.IndexByte(marks, c) < 0) {
			return false
		}
	}
	return len(s) > 0 && len(s) <= limit
}

// ValidActor reports whether s is an actor of contract §1.
func ValidActor(s string) bool {
	if len(s) > MaxActorBytes || !utf8.ValidString(s) {
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
	if err := strictjson.CheckJSON(data, strictjson.Bounds{MaxBytes: MaxJobBytes, MaxDepth: maxJobDepth}); err != nil {
		return nil, jobError("", "%s", err)
	}
	j := new(Job)
	var bad *JobError
	if !strictjson.Members(data, func(key string, v json.RawMessage) bool {
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
		return text(v, &j.Schema, "/schema")
	case "tenant":
		return text(v, &j.Tenant, "/tenant")
	case "run_id":
		return text(v, &j.RunID, "/run_id")
	case "workflow":
		return text(v, &j.Workflow, "/workflow")
	case "owner":
		return text(v, &j.Owner, "/owner")
	case "actor":
		return text(v, &j.Actor, "/actor")
	case "intent":
		return text(v, &j.Intent, "/intent")
	case "budget":
		return j.budget(v)
	case "usage":
		return j.usage(v)
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
		return jobError("/"+key, wrongType)
	}
	return nil
}

const wrongType = "has the wrong type or an impossible value"

// text reads a string; null leaves it empty.
func text(v json.RawMessage, into *string, field string) *JobError {
	if len(v) > 1 && v[0] == '"' && bytes.IndexByte(v, '\\') < 0 {
		*into = string(v[1 : len(v)-1])
		return nil
	}
	if json.Unmarshal(v, into) != nil {
		return jobError(field, wrongType)
	}
	return nil
}

// budget reads the limits that the job names, by their exact names.
func (j *Job) budget(v json.RawMessage) *JobError {
	if string(v) == "null" {
		return nil
	}
	b := new(budget.Request)
	j.Budget = b
	return numbers("/budget", v, func(key string) **int64 {
		switch key {
		case "max_turns":
			return &b.MaxTurns
		case "max_tool_calls":
			return &b.MaxToolCalls
		case "max_attempts_per_step":
			return &b.MaxAttemptsPerStep
		case "max_input_tokens":
			return &b.MaxInputTokens
		case "max_output_tokens":
			return &b.MaxOutputTokens
		case "max_estimated_cost_minor_units":
			return &b.MaxEstimatedCostMinorUnits
		}
		return nil
	}, func(key string, n int64) {
		if seconds := float64(n); key == "max_elapsed_seconds" {
			b.MaxElapsedSeconds = &seconds
		}
	})
}

// usage reads what the caller's model spent.
func (j *Job) usage(v json.RawMessage) *JobError {
	if string(v) == "null" {
		return nil
	}
	u := new(budget.Usage)
	j.Usage = u
	return numbers("/usage", v, func(key string) **int64 {
		switch key {
		case "turns":
			return &u.Turns
		case "input_tokens":
			return &u.InputTokens
		case "output_tokens":
			return &u.OutputTokens
		case "estimated_cost_minor_units":
			return &u.EstimatedCostMinorUnits
		}
		return nil
	}, func(string, int64) {})
}

// numbers reads an object of whole numbers, each into the place that at names; other gets what has another place. Members
// that neither knows are ignored, whatever they are.
func numbers(field string, v json.RawMessage, at func(key string) **int64, other func(key string, n int64)) *JobError {
	var bad *JobError
	ok := strictjson.Members(v, func(key string, v json.RawMessage) bool {
		place := at(key)
		if place == nil && key != "max_elapsed_seconds" || string(v) == "null" {
			return true
		}
		n, whole := wholeNumber(v)
		if !whole {
			bad = jobError(field+"/"+key, "must be a whole number between 0 and 2^53-1")
			return false
		}
		if place != nil {
			*place = &n
		} else {
			other(key, n)
		}
		return true
	})
	if bad == nil && !ok {
		bad = jobError(field, "is not an object")
	}
	return bad
}

// wholeNumber reads a number of contract §3: whole, not negative, below 2^53. 45.0 and 1e3 are whole too.
func wholeNumber(v json.RawMessage) (int64, bool) {
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n, n >= 0 && n <= budget.MaxNumber
	}
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil || f != math.Trunc(f) || f < 0 || f > budget.MaxNumber {
		return 0, false
	}
	return int64(f), true
}

func (j *Job) steps(v json.RawMessage) *JobError {
	var raw []json.RawMessage
	if string(v) != "null" && !strictjson.Elements(v, func(element json.RawMessage) { raw = append(raw, element) }) {
		return jobError("/steps", "is not a list")
	}
	if len(raw) > MaxJobSteps {
		return jobError("/steps", "has more than %d steps", MaxJobSteps)
	}
	j.Steps = make([]JobStep, len(raw))
	for i := range raw {
		s := &j.Steps[i]
		var bad *JobError
		ok := strictjson.Members(raw[i], func(key string, v json.RawMessage) bool {
			switch key {
			case "step":
				bad = text(v, &s.Step, "/step")
			case "tool":
				bad = text(v, &s.Tool, "/tool")
			case "optional":
				if json.Unmarshal(v, &s.Optional) != nil {
					bad = jobError("/optional", wrongType)
				}
			case "args":
				s.checked = strictjson.CheckedArgs(v)
			}
			if bad != nil {
				bad.Field = "/steps/" + strconv.Itoa(i) + bad.Field
			}
			return bad == nil
		})
		if bad != nil {
			return bad
		}
		if !ok {
			return jobError("/steps/"+strconv.Itoa(i), "is not an object")
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
		return jobError("/actor", "must be at most %d bytes without control characters", MaxActorBytes)
	case len(j.Workflow) > 128 || !ValidActor(j.Workflow):
		return jobError("/workflow", "must be at most 128 bytes without control characters")
	case len(j.Intent) > maxIntent:
		return jobError("/intent", "is longer than %d bytes", maxIntent)
	case j.Priority != nil && (*j.Priority < 0 || *j.Priority > 9):
		return jobError("/priority", "must be between 0 and 9")
	}
	seen := make(map[string]bool, len(j.Steps))
	for i := range j.Steps {
		s := &j.Steps[i]
		at := func(f string) string { return "/steps/" + strconv.Itoa(i) + "/" + f }
		if s.checked == nil || string(s.checked.Text()) == "null" {
			s.checked = strictjson.CheckedArgs([]byte("{}"))
		}
		s.Args = s.checked.Text()
		switch {
		case !ValidID(s.Step):
			return jobError(at("step"), "is not an identifier")
		case seen[s.Step]:
			return jobError(at("step"), "is named twice in this job")
		case !ValidTool(s.Tool):
			return jobError(at("tool"), "is not a tool name")
		case s.Args[0] != '{':
			return jobError(at("args"), "is not an object")
		case s.checked.Depth() > MaxArgsDepth:
			return jobError(at("args"), "is nested deeper than %d", MaxArgsDepth)
		}
		seen[s.Step] = true
	}
	waived := make(map[string]bool, len(j.Waive))
	for i, w := range j.Waive {
		if waived[w] {
			return jobError("/waive/"+strconv.Itoa(i), "is named twice")
		}
		waived[w] = true
	}
	return nil
}

// DefaultPriority is the priority of a job that names none (contract §3).
const DefaultPriority = 5

// PriorityOf is the priority that a job in the queue asks for, from 0 to 9; of one that cannot be read it is the default.
func PriorityOf(job []byte) int {
	if len(job) > MaxJobBytes || !bytes.Contains(job, []byte(`"priority"`)) ||
		strictjson.CheckJSON(job, strictjson.Bounds{MaxBytes: MaxJobBytes, MaxDepth: maxJobDepth}) != nil {
		return DefaultPriority
	}
	var j Job
	strictjson.Members(job, func(key string, v json.RawMessage) bool {
		return key != "priority" || j.field(key, v) == nil
	})
	if j.Priority == nil || *j.Priority < 0 || *j.Priority > 9 {
		return DefaultPriority
	}
	return *j.Priority
}
