package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A command tool is this very program with other arguments. It asks the provider what to do, and what it does it mostly has
// done by a process in the background, of another session, after a while: longer than the time after which a lookup proves
// absence. So a single one that outlives its call or its executor is a second row in the ledger.
const (
	commandWord = "command" // URL tool
	commitWord  = "commit"  // URL delay: then commits there
)

// child is what the program does that a tool of the fleet is; false: it is none.
func child(args []string) (code int, is bool) {
	switch {
	case len(args) == 3 && args[0] == commandWord:
		return call(args[1], args[2]), true
	case len(args) == 3 && args[0] == commitWord:
		delay, err := time.ParseDuration(args[2])
		if err != nil {
			return 2, true
		}
		time.Sleep(delay)
		if _, err := post(args[1]); err != nil {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// told is what the provider tells a command to do.
type told struct {
	Nth  int           `json:"nth"`
	Plan string        `json:"plan"`
	Wait time.Duration `json:"wait"`
}

// call is one call: its exit code is 0 if it has an answer.
func call(base, tool string) int {
	query := url.Values{
		"ref": {os.Getenv("AGENTRUN_OPERATION_REF")}, "key": {os.Getenv("AGENTRUN_IDEMPOTENCY_KEY")}, "worker": {os.Getenv("CRASH_WORKER")},
	}
	data, err := post(base + "/begin/" + tool + "?" + query.Encode())
	var do told
	if err != nil || json.Unmarshal(data, &do) != nil {
		return 3
	}
	query.Set("nth", strconv.Itoa(do.Nth))
	to := base + "/commit/" + tool + "?" + query.Encode()
	did, how, _ := strings.Cut(do.Plan, ",")
	answer := []byte(`{"id":"none"}`)
	switch did {
	case "commit":
		answer, err = post(to)
	case "late":
		later := exec.Command("/proc/self/exe", commitWord, to, do.Wait.String())
		later.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err = later.Start(); err == nil && how != "leave" {
			err = later.Wait()
			answer = fmt.Appendf(nil, `{"id":%q}`, query.Get("ref")+"#1")
		}
	}
	if err != nil || how != "answer" {
		return 4
	}
	_, _ = os.Stdout.Write(answer)
	return 0
}

func post(to string) ([]byte, error) {
	resp, err := http.Post(to, "application/json", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var body json.RawMessage
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d: %w", resp.StatusCode, err)
	}
	return body, nil
}

// begin notes a call of a command, and tells it what to do.
func (p *Provider) begin(w http.ResponseWriter, r *http.Request, tool *Tool) {
	q := &Request{Tool: tool.Name, Ref: r.URL.Query().Get("ref"), Key: r.URL.Query().Get("key"), Worker: r.URL.Query().Get("worker"), At: time.Now()}
	p.note(q, tool)
	p.reply(w, 200, told{Nth: q.Nth, Plan: q.Plan, Wait: time.Duration(p.chance("wait", q.Ref, strconv.Itoa(q.Nth)) * float64(tool.Slowest))})
}

// late commits what a command, or what it has left behind, asks for.
func (p *Provider) late(w http.ResponseWriter, r *http.Request, tool *Tool) {
	nth, _ := strconv.Atoi(r.URL.Query().Get("nth"))
	p.mu.Lock()
	list := p.requests[r.URL.Query().Get("ref")]
	p.mu.Unlock()
	if nth < 1 || nth > len(list) {
		http.NotFound(w, r)
		return
	}
	q := list[nth-1]
	id := p.commit(q, tool)
	p.mu.Lock()
	q.Done = time.Now()
	p.mu.Unlock()
	p.reply(w, 200, map[string]any{"id": id})
}

// Commands counts the calls of command tools.
func (p *Provider) Commands() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range p.requests {
		if toolNamed(list[0].Tool).Command {
			n += len(list)
		}
	}
	return n
}
