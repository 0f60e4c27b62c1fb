package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Of the large results: how many bytes each has, how many calls are made, and how many of them at once.
const (
	largeBytes = 1 << 20
	largeRuns  = 1000
	largeSlots = 64
)

// largeConfig is for writes over HTTP and MCP, whose results the journal keeps too.
const largeConfig = worldDefaults + `mcp_servers:
  documents: {url: "%[1]s/mcp"}
tools:
  http:
    effect: write
    http: {method: POST, url: "%[1]s/http"}
    max_result_bytes: 2097152
  mcp:
    effect: write
    mcp: {server: documents, tool: document}
    max_result_bytes: 2097152
`

// largePart measures the memory of an executor of which all calls have large results, which go to the object store, as
// fast as they come; and beside it of one whose results are small.
func (b *parts) largePart() error {
	b.say("large: %d writes, %d at once, each with a result of %d bytes (large) or 100 (small)\n", largeRuns, largeSlots, largeBytes)
	for _, tool := range []string{"http", "mcp"} {
		if err := b.largeOnce(tool, "small", 100); err != nil {
			return err
		}
		if err := b.largeOnce(tool, "large", largeBytes); err != nil {
			return err
		}
	}
	return nil
}

func (b *parts) largeOnce(tool, size string, bytes int) (err error) {
	provider := largeProvider(bytes)
	defer provider.Close()
	w, err := newWorld(b.bin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := os.WriteFile(w.config, fmt.Appendf(nil, largeConfig, provider.URL), 0o600); err != nil {
		return err
	}
	e, err := w.executor("executor", largeSlots)
	if err != nil {
		return err
	}
	if err := e.ready(time.Minute); err != nil {
		return err
	}
	began := time.Now()
	if err := w.publish(largeRuns, tool, `{}`); err != nil {
		return err
	}
	if err := w.wait(0); err != nil {
		return err
	}
	took := time.Since(began)
	name := "large_" + tool + "_" + size
	b.figure(name+"_rss_peak_mb", e.memory("VmHWM"), fmt.Sprintf("MB RSS at most, executor, %s results over %s", size, strings.ToUpper(tool)), map[string]string{"large": "<= 400"}[size])
	b.figure(name+"_calls_per_s", largeRuns/took.Seconds(), "calls/s", "")
	b.figure(name+"_server_rss_peak_mb", w.server().memory("VmHWM"), "MB RSS at most, NATS server", "")
	return nil
}

// largeProvider answers /http and the MCP tool document with that many bytes.
func largeProvider(bytes int) *httptest.Server {
	text := strings.Repeat("x", bytes)
	body := []byte(`{"text":"` + text + `"}`)
	s := mcp.NewServer(&mcp.Implementation{Name: "documents", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "document"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
	})
	mux := http.NewServeMux()
	mux.Handle("/mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	mux.HandleFunc("/http", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	})
	return httptest.NewServer(mux)
}
