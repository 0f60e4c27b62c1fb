package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Of the calls through a gateway.
const (
	gatewayLatency = 1000 // calls one after another, in turn with those of the plain server
	gatewayRate    = 4000 // calls in all, gatewayAtOnce at once
	gatewayAtOnce  = 32
	gatewayWaiting = 1000 // calls that wait at once
)

// gatewayConfig lists the tools that the bench's executors have in Go; the gateway itself calls none.
const gatewayConfig = worldDefaults + `tools:
  noop: {effect: write, join: false, http: {url: "http://127.0.0.1:1/"}}
  later: {effect: write, join: false, http: {url: "http://127.0.0.1:1/"}}
`

// gatewayPart holds calls through a gateway against those of a server of the same SDK that does nothing. Gateway, executor,
// reconciler and NATS are processes; client and plain server are this one.
func (b *parts) gatewayPart() (err error) {
	w, err := newWorld(b.bin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if _, err := w.reconciler("reconciler"); err != nil {
		return err
	}
	e, err := w.executor("executor", fleetConcurrency)
	if err != nil {
		return err
	}
	if err := e.ready(time.Minute); err != nil {
		return err
	}
	config := filepath.Join(w.dir, "gateway.yaml")
	if err := os.WriteFile(config, []byte(gatewayConfig), 0o600); err != nil {
		return err
	}
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	g, err := w.add("gateway", addr, nil, filepath.Join(b.bin, "executor"), "gateway", "--nats", w.url, "--config", config, "--http", addr,
		"--open", "--tenant", tenant, "--actor", "agent:bench", "--queue", queue, "--answer-within", "10m", "--log-level", "warn")
	if err != nil {
		return err
	}
	if err := g.ready(time.Minute); err != nil {
		return err
	}
	plain := mcp.NewServer(&mcp.Implementation{Name: "plain", Version: "1"}, nil)
	plain.AddTool(&mcp.Tool{Name: "noop", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "{}"}}}, nil
	})
	direct := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return plain }, &mcp.StreamableHTTPOptions{Stateless: true}))
	defer direct.Close()
	b.say("gateway: calls of a tool that does nothing, through a gateway and of a plain server; %d processes\n", len(w.processes))
	return b.gatewayCalls(g, direct.URL, "http://"+addr+"/mcp")
}

func (b *parts) gatewayCalls(g *process, urls ...string) error {
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = gatewayAtOnce
	var micros [2][]float64
	var rate [2]float64
	var sessions [2]*mcp.ClientSession
	for i, url := range urls {
		s, err := connectMCP(url)
		if err != nil {
			return err
		}
		defer s.Close()
		sessions[i] = s
		for range 50 { // to warm up
			if err := callNoop(s); err != nil {
				return err
			}
		}
	}
	for range gatewayLatency {
		for i, s := range sessions {
			began := time.Now()
			if err := callNoop(s); err != nil {
				return err
			}
			micros[i] = append(micros[i], float64(time.Since(began).Microseconds()))
		}
	}
	for i, s := range sessions {
		began := time.Now()
		if err := atOnce(gatewayAtOnce, gatewayRate, func() error { return callNoop(s) }); err != nil {
			return err
		}
		rate[i] = gatewayRate / time.Since(began).Seconds()
	}
	b.figure("gateway_plain_p50_us", median(micros[0]), "µs p50 of a call of the plain server", "")
	b.figure("gateway_p50_us", median(micros[1]), "µs p50 of a call through the gateway", "")
	b.figure("gateway_added_p50_ms", (median(micros[1])-median(micros[0]))/1000, "ms p50 added", "<= 3")
	slices.Sort(micros[1])
	b.figure("gateway_p99_us", micros[1][len(micros[1])*99/100], "µs p99 of a call through the gateway", "")
	b.figure("gateway_plain_per_s", rate[0], fmt.Sprintf("calls/s of the plain server, %d at once", gatewayAtOnce), "")
	b.figure("gateway_per_s", rate[1], fmt.Sprintf("calls/s through the gateway, %d at once", gatewayAtOnce), "")
	return b.gatewayWait(g, urls[1])
}

// gatewayWait has many calls wait at once, whose ends are far away.
func (b *parts) gatewayWait(g *process, url string) error {
	before := g.memory("VmRSS")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	heard := make(chan struct{}, 4*gatewayWaiting)
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			if r.Params.Progress == 2 { // its first attempt is over
				heard <- struct{}{}
			}
		},
	})
	s, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url, DisableStandaloneSSE: true}, nil)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer func() { // the calls first: a session is closed when none is in flight
		cancel()
		all.Wait()
		_ = s.Close()
	}()
	for i := range gatewayWaiting {
		all.Go(func() {
			p := &mcp.CallToolParams{Name: "later", Arguments: map[string]any{"seconds": 86400}, Meta: mcp.Meta{"progressToken": fmt.Sprint(i)}}
			_, _ = s.CallTool(ctx, p) // it is given up
		})
	}
	late := time.After(2 * time.Minute)
	for range gatewayWaiting {
		select {
		case <-heard:
		case <-late:
			return fmt.Errorf("%d calls did not all begin to wait", gatewayWaiting)
		}
	}
	b.figure("gateway_waiting_rss_mb", g.memory("VmRSS"), fmt.Sprintf("MB RSS of the gateway with %d calls waiting", gatewayWaiting), "<= 100")
	b.figure("gateway_rss_mb", before, "MB RSS of the gateway without", "")
	return nil
}

func connectMCP(url string) (*mcp.ClientSession, error) {
	c := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	return c.Connect(context.Background(), &mcp.StreamableClientTransport{Endpoint: url, DisableStandaloneSSE: true}, nil)
}

func callNoop(s *mcp.ClientSession) error {
	r, err := s.CallTool(context.Background(), &mcp.CallToolParams{Name: "noop", Arguments: map[string]any{"invoice_id": "inv_10000", "amount_minor": 500}})
	if err == nil && r.IsError {
		err = fmt.Errorf("a call came to %v", r.StructuredContent)
	}
	return err
}

// atOnce calls n times, so many at once.
func atOnce(width, n int, call func() error) error {
	work, failed := make(chan struct{}), make(chan error, width)
	var all sync.WaitGroup
	for range width {
		all.Go(func() {
			for range work {
				if err := call(); err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			}
		})
	}
	for range n {
		work <- struct{}{}
	}
	close(work)
	all.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}
