// Package gateway lets whoever speaks MCP call the tools of agentrun: a call becomes a job, and what became of the job the
// result. What a call maps to and what is said of an outcome are pure functions (call.go, answer.go); the rest waits, and
// speaks MCP. A gateway has no state: runs and steps are named by who calls, the key and the args, so that the same call
// meets the same operation through any gateway, before and after any crash.
package gateway

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/run"
)

// Caller is who calls. A caller never says it: its token does, or the gateway's flags.
type Caller struct {
	Name          string // of the token, for the log
	Tenant, Actor string
	Tools         []string // names, or beginnings followed by *; empty: all
}

// May reports whether the caller may use a tool by this name, as far as its token goes.
func (c *Caller) May(tool string) bool {
	if len(c.Tools) == 0 {
		return true
	}
	for _, t := range c.Tools {
		if beginning, any := strings.CutSuffix(t, "*"); t == tool || any && strings.HasPrefix(tool, beginning) {
			return true
		}
	}
	return false
}

// The members of _meta that the gateway reads.
const (
	MetaKey     = "agentrun/idempotency_key"
	MetaKeySEP  = "idempotencyKey" // of SEP-3182
	MetaRun     = "agentrun/run_id"
	MetaMore    = "agentrun/more"
	metaTrace   = "traceparent"
	keyMax      = 256
	runNameMax  = 50
	stepOfARun  = "call"
	defaultFlow = "mcp"
)

// Call is one tools/call, read.
type Call struct {
	Caller *Caller
	Tool   string
	Args   *strictjson.Args
	Key    string // "": none
	Run    string // as the caller names it; "": the call has a run of its own
	More   bool   // the named run wants further calls
	Trace  string
}

// Problem is what is wrong with a call before anything was done about it.
type Problem struct{ Field, Text string }

func (p *Problem) Error() string { return p.Text }

// ReadCall reads a call. Nothing of it has been looked up; what is wrong comes as a *Problem.
func ReadCall(who *Caller, tool string, args json.RawMessage, meta map[string]any) (*Call, *Problem) {
	c := &Call{Caller: who, Tool: tool, More: true}
	for _, name := range []string{MetaKey, MetaKeySEP} {
		key, bad := metaText(meta, name, keyMax)
		if bad != nil {
			return nil, bad
		}
		if key != "" && c.Key != "" && key != c.Key {
			return nil, &Problem{"_meta", "_meta names two keys: " + MetaKey + " and " + MetaKeySEP + " differ"}
		}
		if key != "" {
			c.Key = key
		}
	}
	var bad *Problem
	if c.Run, bad = metaText(meta, MetaRun, runNameMax); bad != nil {
		return nil, bad
	}
	if c.Run != "" && !run.ValidID(c.Run) {
		return nil, &Problem{"_meta/" + MetaRun, MetaRun + " is no identifier: use letters, digits, _ and -, at most 50, the first a letter or digit"}
	}
	if more, given := meta[MetaMore]; given {
		is := false
		if c.More, is = more.(bool); !is || c.Run == "" {
			return nil, &Problem{"_meta/" + MetaMore, MetaMore + " is true or false, and goes with " + MetaRun}
		}
	}
	c.Trace, _ = meta[metaTrace].(string)
	if len(args) == 0 || string(args) == "null" {
		args = json.RawMessage("{}")
	}
	var err error
	if c.Args, err = strictjson.ParseArgs(args, strictjson.Bounds{MaxBytes: run.MaxArgsBytes, MaxDepth: run.MaxArgsDepth}); err != nil {
		return nil, &Problem{"/arguments", "the arguments cannot be read: " + err.Error()}
	}
	if text := c.Args.Text(); len(text) == 0 || text[0] != '{' {
		return nil, &Problem{"/arguments", "the arguments are no object"}
	}
	return c, nil
}

func metaText(meta map[string]any, name string, limit int) (string, *Problem) {
	v, given := meta[name]
	if !given || v == nil {
		return "", nil
	}
	s, is := v.(string)
	if !is || s == "" || len(s) > limit {
		return "", &Problem{"_meta/" + name, fmt.Sprintf("%s is a text of 1 to %d bytes", name, limit)}
	}
	return s, nil
}

// Place is the operation that a call is: where its job goes.
type Place struct{ Run, Step string }

// Ref names the place within its tenant, as agentrun_status takes it.
func (p Place) Ref() string { return p.Run + "/" + p.Step }

// ParseRef reads what Ref and an operation_ref of this tenant say.
func ParseRef(tenant, ref string) (Place, bool) {
	parts := strings.Split(ref, "/")
	if len(parts) == 3 && parts[0] == tenant {
		parts = parts[1:]
	}
	if len(parts) != 2 || !run.ValidID(parts[0]) || !run.ValidID(parts[1]) {
		return Place{}, false
	}
	return Place{parts[0], parts[1]}, true
}

// name is 26 letters and digits that stand for the parts, in base 32: nobody finds other parts for the same ones.
func name(parts ...string) string {
	h := sha256.New()
	h.Write([]byte("agentrun-gateway/1"))
	for _, p := range parts {
		fmt.Fprintf(h, "\n%d:%s", len(p), p)
	}
	return strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil)))[:26]
}

// RunOf is the run that a caller's own name for one stands for. Runs of one tenant's actors never meet: the rights to use a
// tool are those of the actor that began the run.
func RunOf(who *Caller, named string) string {
	return named + "-" + name("run", who.Tenant, who.Actor)[:13]
}

// Keyed is the place of a call with a key.
func (c *Call) Keyed() Place {
	if c.Run != "" {
		return Place{RunOf(c.Caller, c.Run), "k-" + name("key", c.Key)}
	}
	return Place{"k-" + name("key", c.Caller.Tenant, c.Caller.Actor, c.Key), stepOfARun}
}

// Nth is the place of the n-th call without a key, from 1, of this tool with these args: on one day (UTC), or in the named
// run. The same call while the first is not settled has the same place; that one is the first that is not settled.
func (c *Call) Nth(day time.Time, n int) Place {
	if c.Run != "" {
		return Place{RunOf(c.Caller, c.Run), "c-" + name("args", c.digest()) + "-" + strconv.Itoa(n)}
	}
	return Place{c.line() + "-" + day.UTC().Format("060102") + "-" + strconv.Itoa(n), stepOfARun}
}

// line names all calls without a key of this tool with these args by this actor.
func (c *Call) line() string { return "c-" + name("args", c.Caller.Tenant, c.Caller.Actor, c.digest()) }

// Alone is the place of a call that no other joins; random is at most 26 letters and digits that nobody had before.
func (c *Call) Alone(random string) Place {
	if c.Run != "" {
		return Place{RunOf(c.Caller, c.Run), "n-" + random}
	}
	return Place{"n-" + random, stepOfARun}
}

func (c *Call) digest() string { return c.Args.Digest(c.Tool) }

// Job is the job of the call at its place. flow is the workflow's name, "" for "mcp"; of a run of its own it also tells the
// args, so that every outcome shows whether it is of this call or of another with the same key. owner may be "": the
// config's default.
func (c *Call) Job(at Place, flow, owner string) *run.Job {
	if flow == "" {
		flow = defaultFlow
	}
	j := &run.Job{
		Schema: run.JobSchema, Tenant: c.Caller.Tenant, RunID: at.Run, Actor: c.Caller.Actor, Owner: owner, Workflow: flow,
		// A failure that did nothing is told to the caller, who may correct the call: no person needs a letter about it. What
		// is unknown and what wants an approval is never forgiven.
		Steps: []run.JobStep{{Step: at.Step, Tool: c.Tool, Args: c.Args.Text(), Optional: true}},
	}
	if c.Run != "" {
		j.More, j.Parallel = c.More, true
	} else {
		j.Workflow += "#" + c.digest()[:32]
	}
	return j
}

// Same reports whether an outcome of the place is of this very call: false where the key was used with another tool or
// other args before. In a named run only the executor can tell.
func (c *Call) Same(workflow string) bool {
	_, digest, told := strings.Cut(workflow, "#")
	return c.Run != "" || !told || digest == c.digest()[:32]
}
