package demo

import (
	"encoding/json"
	"fmt"
)

// The case of the demo: a goodwill credit on an invoice, and a draft of the letter that tells the customer.
const (
	Tenant = "acme"
	Run    = "run_1042"
	Queue  = "default"
)

// Config is the config file for a provider at url. The retry policy is short, so that the demo is.
func Config(url string) []byte {
	return fmt.Appendf(nil, `defaults:
  owner: platform-oncall
  retry: {initial_delay: 200ms, max_delay: 2s, multiplier: 2, jitter: 0.2}
tools:
  get_invoice:
    effect: read
    http: {method: GET, url: "%[1]s/invoices/{invoice_id}"}
    timeout: 5s
    output_schema: {type: object, required: [id, total_minor]}
  apply_credit:
    effect: write
    owner: billing-oncall
    http: {method: POST, url: "%[1]s/credits"}
    timeout: 10s
    input_schema: {type: object, required: [invoice_id, amount_minor], properties: {amount_minor: {type: integer, minimum: 1}}}
    output_schema: {type: object, required: [credit_id]}
    evidence_ref: "body.credit_id"
    verify:
      http: {method: GET, url: "%[1]s/credits?operation_ref={operation_ref}"}
      committed: "status == 200 && size(body.items) > 0"
      not_committed: "status == 200 && size(body.items) == 0"
      result: "body.items[0]"
      evidence_ref: "body.items[0].credit_id"
      consistency_window: 1s
  draft_reply:
    effect: read
    http: {method: POST, url: "%[1]s/drafts"}
    timeout: 5s
    output_schema: {type: object, required: [draft_id]}
`, url)
}

// Job is the job of the case.
func Job() []byte {
	job := map[string]any{
		"schema": "agentrun.job/v1", "tenant": Tenant, "run_id": Run,
		"workflow": "resolve_billing_case", "owner": "billing-oncall", "actor": "agent:support",
		"intent": "Apply the approved goodwill credit and tell the customer",
		"budget": map[string]any{
			"max_turns": 12, "max_tool_calls": 8, "max_attempts_per_step": 3, "max_elapsed_seconds": 45,
			"max_input_tokens": 50000, "max_output_tokens": 8000, "max_estimated_cost_minor_units": 25,
		},
		"usage": map[string]any{"turns": 1, "input_tokens": 1200, "output_tokens": 300, "estimated_cost_minor_units": 2},
		"steps": []any{
			map[string]any{"step": "load_invoice", "tool": "get_invoice", "args": map[string]any{"invoice_id": "inv_7"}},
			map[string]any{"step": "apply_credit", "tool": "apply_credit", "args": map[string]any{
				"invoice_id": map[string]any{"$from": "load_invoice#/id"}, "amount_minor": 500,
			}},
			map[string]any{"step": "draft_reply", "tool": "draft_reply", "args": map[string]any{"case": "c_9"}, "optional": true},
		},
		"more": false,
	}
	data, err := json.MarshalIndent(job, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("demo: the job of the case is no JSON: %v", err))
	}
	return data
}
