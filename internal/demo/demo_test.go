package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/terminal"
	"github.com/agentrun/executor/pkg/envelope"
)

const creditRef = "acme/run_1042/apply_credit"

func start(t *testing.T, s Script) *Provider {
	t.Helper()
	p := NewProvider(s)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// ask makes one request; ref and key are sent if they are not empty.
func ask(t *testing.T, method, url, ref, key, body string) (status int, header http.Header, answer map[string]any) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if ref != "" {
		req.Header.Set("Agentrun-Operation-Ref", ref)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		t.Fatalf("%s %s answers %q: %v", method, url, data, err)
	}
	return resp.StatusCode, resp.Header, answer
}

func TestTheProviderFollowsItsScript(t *testing.T) {
	p := start(t, Script{RateLimited: 2, DraftErrors: 1})
	for i, want := range []int{429, 429, 200, 200} {
		status, header, answer := ask(t, "GET", p.URL()+"/invoices/inv_7", "", "", "")
		if status != want || (want == 429) != (header.Get("Retry-After") == "1") {
			t.Errorf("invoice call %d: %d, Retry-After %q", i+1, status, header.Get("Retry-After"))
		}
		if want == 200 && answer["id"] != "inv_7" {
			t.Errorf("invoice call %d: %v", i+1, answer)
		}
	}
	for i, want := range []int{500, 200} {
		if status, _, _ := ask(t, "POST", p.URL()+"/drafts", "", "", `{}`); status != want {
			t.Errorf("draft call %d: %d", i+1, status)
		}
	}
	if status, _, _ := ask(t, "GET", p.URL()+"/elsewhere", "", "", ""); status != 404 {
		t.Errorf("an unknown path: %d", status)
	}
	if got := len(p.Calls()); got != 7 {
		t.Errorf("%d calls were written down, 7 were made", got)
	}
}

func TestTheLedgerHasEachKeyOnce(t *testing.T) {
	p := start(t, Script{})
	const body = `{"invoice_id":"inv_7","amount_minor":500}`
	for _, x := range []struct {
		name, key, body string
		status, credits int
	}{
		{"without a key nothing is given", "", body, 400, 0},
		{"what is no credit is refused", "k", `{"invoice_id":"inv_7","amount_minor":0}`, 422, 0},
		{"the first is given", "k", body, 201, 1},
		{"the same key again gives nothing more", "k", body, 200, 1},
		{"other parameters under the key are refused", "k", `{"invoice_id":"inv_7","amount_minor":501}`, 409, 1},
		{"another key is another credit", "k.p2", body, 201, 2},
	} {
		status, _, answer := ask(t, "POST", p.URL()+"/credits", creditRef, x.key, x.body)
		if status != x.status || len(p.Ledger()) != x.credits {
			t.Errorf("%s: status %d, %d credits", x.name, status, len(p.Ledger()))
		}
		if status == 200 && answer["credit_id"] != p.Ledger()[0].ID {
			t.Errorf("%s: the first answer was %s, now %v", x.name, p.Ledger()[0].ID, answer)
		}
	}
	for ref, want := range map[string]int{creditRef: 2, "acme/run_1042/other": 0} {
		_, _, answer := ask(t, "GET", p.URL()+"/credits?operation_ref="+ref, "", "", "")
		if items, ok := answer["items"].([]any); !ok || len(items) != want {
			t.Errorf("the lookup of %s finds %v, wanted %d", ref, answer, want)
		}
	}
}

func ended(word envelope.Word, effects ...envelope.CompletedEffect) *envelope.Outcome {
	return &envelope.Outcome{Scope: envelope.RunScope, Outcome: word, CompletedEffects: effects}
}

// The verdict rests on the provider's books, and finds everything that would be wrong with them.
func TestJudge(t *testing.T) {
	credited := envelope.CompletedEffect{Step: "apply_credit", OperationRef: creditRef, EvidenceRef: "cr_3"}
	const body = `{"invoice_id":"inv_7","amount_minor":500}`
	for _, x := range []struct {
		name string
		keys []string // one call each
		body string
		end  *envelope.Outcome
		want string // part of a problem; "" for none
	}{
		{"as it should be", []string{"k"}, body, ended(envelope.OK, credited), ""},
		{"never sent", nil, body, ended(envelope.OK), "sent 0 times"},
		{"sent twice, given once", []string{"k", "k"}, body, ended(envelope.OK, credited), "sent 2 times"},
		{"given twice", []string{"k", "k2"}, body, ended(envelope.OK, credited), "ledger has 2 credits"},
		{"another amount", []string{"k"}, `{"invoice_id":"inv_7","amount_minor":501}`, ended(envelope.OK, credited), "nobody asked for"},
		{"no end", []string{"k"}, body, nil, "did not end"},
		{"not ok", []string{"k"}, body, ended(envelope.Fatal, credited), "ended fatal"},
		{"the run does not know", []string{"k"}, body, ended(envelope.OK), "lists the effects"},
		{"another proof", []string{"k"}, body, ended(envelope.OK, envelope.CompletedEffect{OperationRef: creditRef, EvidenceRef: "cr_9"}), "proof"},
	} {
		p := start(t, Script{})
		for _, key := range x.keys {
			ask(t, "POST", p.URL()+"/credits", creditRef, key, x.body)
		}
		v := Judge(p, x.end)
		all := strings.Join(v.Problems, "; ")
		if (x.want == "") != (all == "") || !strings.Contains(all, x.want) {
			t.Errorf("%s: problems %q, wanted %q", x.name, all, x.want)
		}
		var b bytes.Buffer
		Show(terminal.New(&b, func(string) string { return "" }), p, v)
		if strings.Contains(b.String(), "sent once and given once") != (x.want == "") {
			t.Errorf("%s: shown as\n%s", x.name, b.String())
		}
		if got := strings.Count(b.String(), "POST /credits"); got != len(x.keys) {
			t.Errorf("%s: %d of %d calls are shown", x.name, got, len(x.keys))
		}
	}
}

func TestTheJobFitsTheConfig(t *testing.T) {
	var job struct {
		Steps []struct{ Step, Tool string }
	}
	if err := json.Unmarshal(Job(), &job); err != nil {
		t.Fatal(err)
	}
	if len(job.Steps) != 3 {
		t.Errorf("the case has %d steps", len(job.Steps))
	}
	config := string(Config("http://127.0.0.1:1"))
	for _, s := range job.Steps {
		if !strings.Contains(config, "\n  "+s.Tool+":\n") {
			t.Errorf("the config has no tool %s", s.Tool)
		}
	}
}
