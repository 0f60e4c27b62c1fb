package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/engine"
)

// BenchmarkSingleStep is the whole core work for a job with one step: accept, begin, the record's first encoding, the
// reply, the record's second encoding, and its two outcomes. Large args show how often they are read on their way.
func BenchmarkSingleStep(b *testing.B) {
	for name, note := range map[string]int{"small": 0, "64KiB": 64 << 10} {
		b.Run(name, func(b *testing.B) {
			singleStep(b, fmt.Sprintf(`{"invoice_id":"inv_7","amount_minor":500,"note":%q}`, strings.Repeat("word ", note/5)))
		})
	}
}

func singleStep(b *testing.B, args string) {
	g := tools()
	data := job(`"workflow":"resolve_billing_case","owner":"billing-oncall","actor":"agent:support","usage":{"turns":1,"input_tokens":100}`,
		step("apply_credit", "write", args))
	reply := ok(`{"credit_id":"cr_3"}`)
	reply.EvidenceRef = "cr_3"
	d := defaults()
	b.ReportAllocs()
	for b.Loop() {
		r := engine.Create(runID, engine.Message{Seq: 1, Time: start, Queue: "default", Data: data}, d, start)
		r.Judge(g, nowhere, start)
		x := r.Begin("apply_credit", g, engine.Start{Dispatch: "0123456789abcdef", LeaseID: "fedcba9876543210", Holder: "h1", Seconds: 30, Worker: "w1"}, start)
		first, err := r.Encode()
		if err != nil {
			b.Fatal(err)
		}
		r.Reply(x.ID, reply, g, engine.Source{By: "w1", At: start + 5})
		second, err := r.Encode()
		if err != nil || len(first) == 0 || len(second) == 0 {
			b.Fatal(err)
		}
		for i := range r.Owed {
			if _, err := r.Outcome(&r.Owed[i]).Append(nil); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	d := create(b, job("", step("a", "write", `{"n":1}`), step("b", "read", "{}")))
	d.call("a", ok("{}"))
	data, err := d.r.Encode()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := engine.Decode(data); err != nil {
			b.Fatal(err)
		}
	}
}
