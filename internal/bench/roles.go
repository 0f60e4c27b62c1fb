package main

import (
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/executor"
)

// profileEnv names the file that a role's CPU profile is written to, from the first profileSignal to the second.
const (
	profileEnv    = "BENCH_CPUPROFILE"
	profileSignal = syscall.SIGUSR1
)

// role runs this program as an executor or a reconciler with the bench's tools beside those of its config:
// bench executor serve …, bench reconciler serve …. It is the whole command, so what is measured is what is run elsewhere.
func role() bool {
	if len(os.Args) < 2 || os.Args[1] != "executor" && os.Args[1] != "reconciler" {
		return false
	}
	name := os.Args[1]
	os.Args = append([]string{name}, os.Args[2:]...)
	if file := os.Getenv(profileEnv); file != "" {
		profileBySignal(file)
	}
	if name == "executor" {
		executor.Main(tools()...)
	}
	executor.Reconciler(tools()...)
	return true
}

// tools are noop, which does nothing; later, whose first attempt is to be repeated after as many seconds as its args say;
// flaky, a read whose first attempt fails and whose second says when it was sent; and refused, which fails for good and so
// leaves a letter.
func tools() []*connector.Tool {
	noop := func(context.Context, *connector.Call) (json.RawMessage, error) {
		return json.RawMessage(`{"credit_id":"cr_3"}`), nil
	}
	later := func(ctx context.Context, c *connector.Call) (json.RawMessage, error) {
		var args struct{ Seconds int }
		if err := json.Unmarshal(c.Args, &args); err != nil || c.Attempt > 1 {
			return noop(ctx, c)
		}
		return nil, &connector.Fault{Code: envelope.CodeUpstreamError, CommitState: envelope.NotCommitted, RetryAfter: time.Duration(args.Seconds) * time.Second}
	}
	flaky := func(ctx context.Context, c *connector.Call) (json.RawMessage, error) {
		sent := time.Now()
		var args struct{ Takes, After int }
		if err := json.Unmarshal(c.Args, &args); err != nil {
			return nil, err
		}
		select {
		case <-time.After(time.Duration(args.Takes) * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if c.Attempt > 1 {
			return json.Marshal(map[string]time.Time{"sent": sent})
		}
		return nil, &connector.Fault{Code: envelope.CodeUpstreamError, CommitState: envelope.NotCommitted, RetryAfter: time.Duration(args.After) * time.Millisecond}
	}
	refused := func(context.Context, *connector.Call) (json.RawMessage, error) {
		return nil, &connector.Fault{Code: envelope.CodeResourceNotFound, CommitState: envelope.NotCommitted}
	}
	var out []*connector.Tool
	for name, fn := range map[string]connector.GoFunc{"noop": noop, "later": later, "refused": refused, "flaky": flaky} {
		effect := envelope.Write
		if name == "flaky" {
			effect = envelope.Read
		}
		tool, err := connector.Func(name, effect, fn)
		if err != nil {
			fail(err)
		}
		out = append(out, tool)
	}
	return out
}

func profileBySignal(file string) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, profileSignal)
	go func() {
		<-told
		f, err := os.Create(file)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fail(err)
		}
		<-told
		pprof.StopCPUProfile()
		_ = f.Close()
	}()
}
