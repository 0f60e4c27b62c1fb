package httptool_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/httptool"
	"github.com/agentrun/executor/pkg/envelope"
)

const atOnce = 256

func benchServer(b *testing.B) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"credit_id":"cr_3"}`)
	}))
	b.Cleanup(s.Close)
	return s.URL
}

// each runs b.N calls, atOnce of them at a time.
func each(b *testing.B, call func() bool) {
	b.ReportAllocs()
	b.ResetTimer()
	work := make(chan struct{}, b.N)
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for range work {
				if !call() {
					b.Error("a call failed")
					return
				}
			}
		})
	}
	wg.Wait()
}

// The two belong together: what a call through a tool costs beside a bare http.Client with connection reuse.
func BenchmarkCalls256(b *testing.B) {
	url := benchServer(b)
	kind := httptool.New()
	defer kind.Close()
	tool, err := connector.Compile(connector.Spec{
		Name: "credit", Effect: envelope.Write, Kind: connector.KindSpec{HTTP: &connector.HTTPSpec{Method: "POST", URL: url}},
		OutputSchema: map[string]any{"type": "object", "required": []any{"credit_id"}}, EvidenceRef: "body.credit_id",
	}, kind)
	if err != nil {
		b.Fatal(err)
	}
	each(b, func() bool {
		return tool.Caller.Call(context.Background(), newCall(`{"invoice_id":"inv_7","amount_minor":500}`)).OK
	})
}

func BenchmarkBareClient256(b *testing.B) {
	url := benchServer(b)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: atOnce, MaxIdleConns: atOnce}}
	defer client.CloseIdleConnections()
	each(b, func() bool {
		req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader([]byte(`{"invoice_id":"inv_7","amount_minor":500}`)))
		if err != nil {
			return false
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		_, err = io.ReadAll(resp.Body)
		return err == nil
	})
}
