package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/gateway"
	"github.com/agentrun/executor/internal/observe"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/run"
)

// GatewayConfig is executor gateway's flags.
type GatewayConfig struct {
	Connection `embed:""`
	Config     string        `name:"config" required:"" placeholder:"FILE" help:"Config file with the tools: that of the executors."`
	HTTP       string        `name:"http" default:"127.0.0.1:9465" placeholder:"ADDR" help:"Address of /mcp, and of /healthz and /readyz."`
	Stdio      bool          `name:"stdio" help:"Serve the one caller at standard input and output instead."`
	Tokens     string        `name:"tokens" placeholder:"FILE" help:"File that says who has which bearer token; read again when it changes."`
	Open       bool          `name:"open" help:"Let whoever reaches the address call without a token, as --tenant and --actor. On loopback only."`
	Tenant     string        `name:"tenant" placeholder:"NAME" help:"Tenant of the calls, with --open and --stdio."`
	Actor      string        `name:"actor" placeholder:"NAME" help:"Actor of the calls, with --open and --stdio."`
	Origin     []string      `name:"origin" placeholder:"URL" help:"Origins of web pages that may call, for example https://chat.example."`
	Queue      string        `name:"queue" default:"default" placeholder:"NAME" help:"Queue that calls are published to."`
	Workflow   string        `name:"workflow" default:"mcp" placeholder:"NAME" help:"Workflow of the runs, at most 64 bytes."`
	Owner      string        `name:"owner" placeholder:"NAME" help:"Owner of the runs' dead letters (default: the config's)."`
	Within     time.Duration `name:"answer-within" default:"50s" placeholder:"D" help:"How long a call is waited for; after that its caller is told that the outcome is not known yet. Less than the callers' own time."`
	LogFormat  string        `name:"log-format" default:"text" placeholder:"text|json" help:"Form of the log on standard error."`
	LogLevel   string        `name:"log-level" default:"info" placeholder:"LEVEL" help:"debug, info, warn or error."`

	Seams `kong:"-"`
	In    io.Reader `kong:"-"` // of --stdio
	Out   io.Writer `kong:"-"`
}

// Complete checks every flag; the error is one line that names it.
func (c *GatewayConfig) Complete() error {
	if err := c.Connection.Check(); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(c.HTTP)
	ip := net.ParseIP(host)
	loopback := host == "localhost" || ip != nil && ip.IsLoopback()
	switch {
	case err != nil:
		return fmt.Errorf("--http: %q is not host:port", c.HTTP)
	case c.Stdio && (c.Tokens != "" || c.Open):
		return errors.New("--stdio: the caller is who started this process; --tokens and --open are for --http")
	case c.Open && c.Tokens != "":
		return errors.New("--open: calls without a token, and --tokens, exclude one another")
	case c.Open && !loopback:
		return fmt.Errorf("--open: without tokens only this machine may call, and %s is reached by others; use 127.0.0.1, or --tokens", c.HTTP)
	case !c.Stdio && !c.Open && c.Tokens == "":
		return errors.New("--tokens: name the file of tokens, or let everybody on this machine call with --open")
	case (c.Stdio || c.Open) && !run.ValidID(c.Tenant):
		return fmt.Errorf("--tenant: %q is no tenant (letters, digits, _ and -, at most 64, the first a letter or digit)", c.Tenant)
	case (c.Stdio || c.Open) && (c.Actor == "" || !run.ValidActor(c.Actor)):
		return errors.New("--actor: say who calls, in 1 to 256 bytes without control characters")
	case c.Tokens != "" && (c.Tenant != "" || c.Actor != ""):
		return errors.New("--tenant, --actor: a token says who has it; these are for --open and --stdio")
	case !run.ValidID(c.Queue):
		return fmt.Errorf("--queue: %q is no queue name (letters, digits, _ and -, at most 64, the first a letter or digit)", c.Queue)
	case c.Owner != "" && !run.ValidID(c.Owner):
		return fmt.Errorf("--owner: %q is no identifier", c.Owner)
	case c.Workflow == "" || len(c.Workflow) > 64 || !run.ValidActor(c.Workflow):
		return errors.New("--workflow: 1 to 64 bytes without control characters")
	}
	if err := oneOf("--log-format", c.LogFormat, "text", "json"); err != nil {
		return err
	}
	if err := oneOf("--log-level", c.LogLevel, "debug", "info", "warn", "error"); err != nil {
		return err
	}
	return span("--answer-within", c.Within, 100*time.Millisecond, time.Hour)
}

// Gateway runs executor gateway until ctx ends or, with Stdio, its input does.
func Gateway(ctx context.Context, c GatewayConfig) error {
	as := Process{Connection: c.Connection, Config: c.Config, ID: "gateway", LogFormat: c.LogFormat, LogLevel: c.LogLevel, Seams: c.Seams}
	kinds := newKinds(c.Tools...)
	defer kinds.close()
	box, warnings, err := kinds.load(ctx, c.Config, as.lookup(), importSeen)
	if err != nil {
		return err
	}
	p, err := newProcess(observe.Executor, &as, box)
	if err != nil {
		return err
	}
	kinds.watch(p)
	p.warn(warnings)
	if c.Owner == "" && box.File.Defaults.Owner == "" {
		return errors.New("the runs would have no owner: say defaults.owner in the config, or --owner")
	}
	find := func(string) *gateway.Caller { return nil }
	one := &gateway.Caller{Name: "open", Tenant: c.Tenant, Actor: c.Actor}
	switch {
	case c.Open:
		find = func(string) *gateway.Caller { return one }
	case c.Tokens != "":
		tokens, err := gateway.ReadTokens(c.Tokens, p.log, time.Now)
		if err != nil {
			return fmt.Errorf("--tokens: %w", err)
		}
		find = tokens.Find
	}
	nc, err := nats.Connect(c.NATS, append(append(options(c.Connection), c.NATSOptions...), nats.Name("agentrun gateway"), nats.Timeout(dialTimeout),
		nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond), nats.RetryOnFailedConnect(true),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { p.log.Debug("nats", "error", err) }))...)
	if err != nil {
		return fmt.Errorf("connecting to NATS at %s (--nats): %w", withoutPassword(c.NATS), err)
	}
	defer nc.Close()
	publisher, err := client.New(nc, client.Domain(c.JSDomain), client.APIPrefix(c.JSPrefix))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		p.beside.Wait()
	}()
	tools := newLive(box)
	p.beside.Go(func() { tools.follow(ctx, &as, p, func() {}, kinds) })
	g := gateway.New(gateway.Config{
		Client: publisher, Tools: func() *connector.Registry { return tools.box().Registry }, Queue: c.Queue, Flow: c.Workflow, Owner: c.Owner,
		Within: c.Within, Log: p.log, Now: time.Now,
	})
	defer g.Stop()
	if c.Stdio {
		p.started(&as)
		return stopped(ctx, g.Stdio(ctx, one, io.NopCloser(c.In), noClose{c.Out}))
	}
	return serveGateway(ctx, &c, &as, p, g, find, nc)
}

type noClose struct{ io.Writer }

func (noClose) Close() error { return nil }

// Times of the HTTP server. An answer takes as long as a call does, so that writing has no bound but the connection's.
const (
	gatewayHeader = 5 * time.Second
	gatewayBody   = 30 * time.Second
	gatewayIdle   = 2 * time.Minute
	gatewayGrace  = 5 * time.Second
)

func serveGateway(ctx context.Context, c *GatewayConfig, as *Process, p *process, g *gateway.Gateway, find func(string) *gateway.Caller, nc *nats.Conn) error {
	h, err := g.Handler(find, c.Origin...)
	if err != nil {
		return fmt.Errorf("--origin: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", h)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !nc.IsConnected() || ctx.Err() != nil {
			http.Error(w, "nats: not connected", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	l, err := net.Listen("tcp", c.HTTP)
	if err != nil {
		return fmt.Errorf("cannot serve HTTP on %s (--http): %w", c.HTTP, err)
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: gatewayHeader, ReadTimeout: gatewayBody, IdleTimeout: gatewayIdle, MaxHeaderBytes: 64 << 10}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	p.log.Info("ready", "mcp", "http://"+l.Addr().String()+"/mcp", "open", c.Open)
	if as.OnReady != nil {
		as.OnReady(l.Addr().String())
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	g.Stop() // those who wait are told that it is not known yet
	grace, cancel := context.WithTimeout(context.Background(), gatewayGrace)
	defer cancel()
	if err := s.Shutdown(grace); err != nil {
		_ = s.Close() // what is in flight goes on without this process
	}
	return nil
}
