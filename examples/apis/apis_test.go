// Package apis holds configs for APIs that many use. Each is run here against a stub that answers as the API does.
package apis

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/httptool"
	"github.com/agentrun/executor/pkg/envelope"
)

type object = map[string]any

// stub is an API with its books: what it has done, in order.
type stub struct {
	mu     sync.Mutex
	done   []object
	byKey  map[string]int // what was done for a key
	silent bool           // do what is asked, and do not answer
}

func (s *stub) handle(t *testing.T, route func(*stub, *http.Request, []byte) (int, object)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("body: %v", err)
		}
		s.mu.Lock()
		status, answer := route(s, r, data)
		silent := s.silent && r.Header.Get("Idempotency-Key") != ""
		s.mu.Unlock()
		if silent {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		if status == http.StatusForbidden {
			w.Header().Set("X-RateLimit-Remaining", "0")
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer)
	})
}

// form reads a form as PHP and Rails do, for the names that the examples use.
func form(r *http.Request, data []byte) (url.Values, bool) {
	v, err := url.ParseQuery(string(data))
	return v, err == nil && r.Header.Get("Content-Type") == "application/x-www-form-urlencoded"
}

func jsonBody(r *http.Request, data []byte) (v object, ok bool) {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return v, json.Unmarshal(data, &v) == nil && kind == "application/json"
}

func authorized(r *http.Request, want string) bool { return r.Header.Get("Authorization") == want }

func stripe(s *stub, r *http.Request, data []byte) (int, object) {
	problem := func(status int, code string) (int, object) {
		return status, object{"error": object{"code": code, "message": "no"}}
	}
	switch {
	case !authorized(r, "Bearer s3cr3t-value"):
		return problem(401, "unauthorized")
	case r.Method == "GET":
		list := []object{}
		for i := len(s.done) - 1; i >= 0; i-- {
			if s.done[i]["payment_intent"] == r.URL.Query().Get("payment_intent") {
				list = append(list, s.done[i])
			}
		}
		return 200, object{"object": "list", "data": list, "has_more": false}
	}
	v, ok := form(r, data)
	if !ok || v.Get("payment_intent") == "" || v.Get("reason") != "requested_by_customer" {
		return problem(400, "parameter_missing")
	}
	key := r.Header.Get("Idempotency-Key")
	if at, seen := s.byKey[key]; seen {
		if s.done[at]["sent"] != string(data) {
			return problem(400, "idempotency_key_in_use")
		}
		return 200, s.done[at]
	}
	if v.Get("amount") == "402" {
		return problem(402, "card_declined")
	}
	refund := object{
		"id": fmt.Sprintf("re_%d", len(s.done)+1), "object": "refund", "status": "succeeded", "payment_intent": v.Get("payment_intent"),
		"amount": json.Number(v.Get("amount")), "metadata": object{"agentrun_ref": v.Get("metadata[agentrun_ref]")}, "sent": string(data),
	}
	s.byKey[key] = len(s.done)
	s.done = append(s.done, refund)
	return 200, refund
}

func twilio(s *stub, r *http.Request, data []byte) (int, object) {
	if !authorized(r, "Basic s3cr3t-value") || r.URL.Path != "/2010-04-01/Accounts/s3cr3t-value/Messages.json" {
		return 401, object{"code": 20003, "status": 401}
	}
	if r.Method == "GET" {
		list := []object{}
		for _, m := range s.done {
			if m["to"] == r.URL.Query().Get("To") {
				list = append(list, m)
			}
		}
		return 200, object{"messages": list, "next_page_uri": nil}
	}
	v, ok := form(r, data)
	if !ok || v.Get("To") == "" || v.Get("Body") == "" {
		return 400, object{"code": 21604, "status": 400}
	}
	if v.Get("To") == "+402" {
		return 400, object{"code": 21211, "status": 400}
	}
	s.done = append(s.done, object{"sid": fmt.Sprintf("SM%d", len(s.done)+1), "to": v.Get("To"), "body": v.Get("Body"), "status": "queued"})
	return 201, s.done[len(s.done)-1]
}

func github(s *stub, r *http.Request, data []byte) (int, object) {
	if !authorized(r, "Bearer s3cr3t-value") || r.Header.Get("Accept") != "application/vnd.github+json" {
		return 401, object{"message": "Bad credentials"}
	}
	if r.URL.Path == "/search/issues" {
		wanted, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Query().Get("q"), `"`), `"`)
		if !strings.HasSuffix(r.URL.Query().Get("q"), " repo:acme/shop") {
			return 422, object{"message": "Validation Failed"}
		}
		list := []object{}
		for _, i := range s.done {
			if strings.Contains(i["body"].(string), wanted) {
				list = append(list, i)
			}
		}
		return 200, object{"total_count": len(list), "incomplete_results": false, "items": list}
	}
	v, ok := jsonBody(r, data)
	title, _ := v["title"].(string)
	if !ok || title == "" {
		return 422, object{"message": "Validation Failed"}
	}
	if title == "402" {
		return 403, object{"message": "You have exceeded a secondary rate limit"}
	}
	n := len(s.done) + 1
	v["number"], v["html_url"] = n, fmt.Sprintf("https://github.com/acme/shop/issues/%d", n)
	s.done = append(s.done, v)
	return 201, v
}

func jira(s *stub, r *http.Request, data []byte) (int, object) {
	if !authorized(r, "Basic s3cr3t-value") {
		return 401, object{}
	}
	v, ok := jsonBody(r, data)
	if !ok {
		return 415, object{}
	}
	if r.URL.Path == "/rest/api/2/search/jql" {
		list := []object{}
		for _, i := range s.done {
			if v["jql"] == fmt.Sprintf("labels = %q", i["label"]) {
				list = append(list, object{"id": "1", "key": i["key"]})
			}
		}
		return 200, object{"issues": list, "isLast": true}
	}
	fields, _ := v["fields"].(object)
	labels, _ := fields["labels"].([]any)
	if due, given := fields["duedate"]; len(labels) != 2 || (given && due == nil) || fields["summary"] == "402" {
		return 400, object{"errorMessages": []string{}, "errors": object{"summary": "no"}}
	}
	s.done = append(s.done, object{"key": fmt.Sprintf("OPS-%d", len(s.done)+1), "label": labels[1]})
	return 201, object{"id": "1", "key": s.done[len(s.done)-1]["key"]}
}

func slack(s *stub, r *http.Request, data []byte) (int, object) {
	if !authorized(r, "Bearer s3cr3t-value") {
		return 200, object{"ok": false, "error": "invalid_auth"}
	}
	if r.URL.Path == "/api/conversations.history" {
		if r.URL.Query().Get("include_all_metadata") != "true" {
			return 200, object{"ok": true, "messages": []object{}, "has_more": false}
		}
		return 200, object{"ok": true, "messages": append([]object{{"ts": "0.1", "text": "of a person"}}, s.done...), "has_more": false}
	}
	v, ok := jsonBody(r, data)
	switch {
	case !ok:
		return 200, object{"ok": false, "error": "invalid_form_data"}
	case v["text"] == "402":
		return 200, object{"ok": false, "error": "channel_not_found"}
	}
	ts := fmt.Sprintf("1700000000.%06d", len(s.done)+1)
	s.done = append(s.done, object{"ts": ts, "text": v["text"], "metadata": v["metadata"]})
	return 200, object{"ok": true, "channel": v["channel"], "ts": ts}
}

func TestTheExamples(t *testing.T) {
	for _, c := range []struct {
		name, base   string
		route        func(*stub, *http.Request, []byte) (int, object)
		args, refuse string // refuse makes the API say no
		evidence     string // of the first that is done
		code         envelope.Code
		honoursKey   bool
	}{
		{"stripe", "https://api.stripe.com", stripe, `{"payment_intent":"pi_1","amount":500,"case":"c & d"}`, `{"payment_intent":"pi_1","amount":402}`, "re_1", "CARD_REFUSED", true},
		{"twilio", "https://api.twilio.com", twilio, `{"to":"+491701234567","text":"Ihr Guthaben: 5 €"}`, `{"to":"+402","text":"x"}`, "SM1", "UPSTREAM_REJECTED_INPUT", false},
		{"github", "https://api.github.com", github, `{"owner":"acme","repo":"shop","title":"It \"broke\"","text":"see\n{log}"}`, `{"owner":"acme","repo":"shop","title":"402","text":"x"}`, "https://github.com/acme/shop/issues/1", "UPSTREAM_RATE_LIMITED", false},
		{"jira", "https://your-site.atlassian.net", jira, `{"project":"OPS","title":"It broke","text":"see log"}`, `{"project":"OPS","title":"402"}`, "OPS-1", "UPSTREAM_REJECTED_INPUT", false},
		{"slack", "https://slack.com", slack, `{"channel":"C01","text":"Credit given"}`, `{"channel":"C01","text":"402"}`, "C01/1700000000.000001", "RESOURCE_NOT_FOUND", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &stub{byKey: map[string]int{}}
			tool := load(t, c.name+".yaml", c.base, serve(t, s.handle(t, c.route)))
			call := &connector.Call{
				Tenant: "acme", RunID: "run_1", Step: "do", OperationRef: "acme/run_1/do", IdempotencyKey: "acme/run_1/do", Attempt: 1,
				Args: json.RawMessage(c.args),
			}
			if field, ok := tool.CheckArgs(call.Args); !ok {
				t.Fatalf("args refused at %s", field)
			}
			absent := func() {
				t.Helper()
				if got := tool.Looker.Lookup(t.Context(), call); got.Answer != envelope.Absent {
					t.Fatalf("nothing is done, and the lookup says %+v", got)
				}
			}
			absent()
			refused := *call
			refused.Args = json.RawMessage(c.refuse)
			if got := tool.Caller.Call(t.Context(), &refused); got.OK || got.Row.Code != c.code || got.Row.CommitState != envelope.NotCommitted {
				t.Errorf("a refusal is %+v, want %s", got.Row, c.code)
			}
			absent()

			// The answer is lost: unknown, and the lookup finds what was done, as does no other operation's.
			s.silence(true)
			if got := tool.Caller.Call(t.Context(), call); got.OK || got.Row.CommitState != envelope.Unknown {
				t.Fatalf("a lost answer is %+v", got)
			}
			s.silence(false)
			if got := tool.Looker.Lookup(t.Context(), call); got.Answer != envelope.Found || got.EvidenceRef != c.evidence || !tool.CheckResult(got.Result) {
				t.Fatalf("the lookup says %+v, want %s", got, c.evidence)
			}
			other := *call
			other.OperationRef, other.IdempotencyKey = "acme/run_1/do2", "acme/run_1/do2"
			if got := tool.Looker.Lookup(t.Context(), &other); got.Answer != envelope.Absent {
				t.Errorf("another operation's lookup says %+v", got)
			}

			// A provider that honours the key gives the same answer to the same bytes.
			if c.honoursKey {
				if got := tool.Caller.Call(t.Context(), call); !got.OK || got.EvidenceRef != c.evidence {
					t.Errorf("the same key again is %+v", got)
				}
			}
			before := len(s.books())
			got := tool.Caller.Call(t.Context(), &other)
			if !got.OK || got.EvidenceRef == "" || got.EvidenceRef == c.evidence || len(s.books()) != before+1 {
				t.Errorf("another operation is %+v, %d in the books after %d", got, len(s.books()), before)
			}
			if before != 1 {
				t.Errorf("%d in the books for one operation", before)
			}
		})
	}
}

func (s *stub) silence(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = on
}

func (s *stub) books() []object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// serve starts a server without a log: it is told to lose answers.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, done := &http.Server{Handler: h}, make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return "http://" + l.Addr().String()
}

// load compiles an example's one tool with its API's address replaced.
func load(t *testing.T, file, base, address string) *connector.Tool {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), base) {
		t.Fatalf("%s does not call %s", file, base)
	}
	text := strings.ReplaceAll(string(data), base, address)
	f, warnings, err := config.Parse(file, []byte(text), func(string) (string, bool) { return "s3cr3t-value", true })
	if err != nil || len(warnings) > 0 || len(f.Tools) != 1 {
		t.Fatalf("%v %v", err, warnings)
	}
	kind := httptool.New()
	t.Cleanup(kind.Close)
	tool, err := connector.Compile(f.Tools[0], kind)
	if err != nil {
		t.Fatal(err)
	}
	return tool
}
