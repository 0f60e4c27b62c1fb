package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/internal/terminal"
	"github.com/agentrun/executor/pkg/client"
	agentrun "github.com/agentrun/executor/pkg/run"
)

// asking is what every operator command has: where to ask, for which tenant, and how to print the answer.
type asking struct {
	app.Connection `embed:""`
	Tenant         string        `name:"tenant" placeholder:"NAME" help:"Tenant; lists and claim take all if it is not named."`
	JSON           bool          `name:"json" help:"Print the reply as JSON."`
	Timeout        time.Duration `name:"timeout" default:"10s" placeholder:"D" help:"How long to wait for an answer."`
}

// acting is what commands have that change something.
type acting struct {
	asking `embed:""`
	By     string `name:"by" placeholder:"NAME" help:"Who does it (default: $USER)."`
	Reason string `name:"reason" placeholder:"TEXT" help:"Why; it is kept in the run's history."`
	Letter string `name:"letter" placeholder:"ID" help:"Id of the letter that you have read, as show prints it."`
	Yes    bool   `name:"yes" short:"y" help:"Do not ask."`
}

// one is the run that a command is about.
type one struct {
	Run string `arg:"" name:"run" help:"The run: RUN_ID with --tenant, or TENANT/RUN_ID."`
}

// desk is where a command makes its calls and prints.
type desk struct {
	env     app.Env
	out     *terminal.Printer
	nc      *nats.Conn
	client  *client.Client
	width   int
	timeout time.Duration
	command string
}

// open checks the flags and connects.
func (a *asking) open(env app.Env, command string) (*desk, error) {
	if err := a.Connection.Check(); err != nil {
		return nil, &app.Usage{Command: command, Err: err}
	}
	if a.Timeout <= 0 {
		return nil, &app.Usage{Command: command, Err: fmt.Errorf("--timeout: %s is out of bounds, must be more than 0", a.Timeout)}
	}
	if a.Tenant != "" && a.Tenant != client.AllTenants && a.Tenant != port.InvalidTenant && !agentrun.ValidID(a.Tenant) {
		return nil, &app.Usage{Command: command, Err: fmt.Errorf("--tenant: %q is no tenant", a.Tenant)}
	}
	nc, err := app.Dial(a.Connection, command)
	if err != nil {
		return nil, err
	}
	c, err := client.New(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &desk{
		env: env, out: terminal.New(env.Stdout, env.Getenv), nc: nc, client: c, width: terminal.Width(env.Stdout, env.Getenv), timeout: a.Timeout,
		command: command,
	}, nil
}

// about splits the run's name; the tenant comes from --tenant or from the name itself, which may be a letter's id.
func (a *asking) about(command, name string) (tenant, runID string, err error) {
	tenant, runID = a.Tenant, name
	if before, after, ok := strings.Cut(name, "/"); ok {
		runID, _, _ = strings.Cut(after, "/")
		if tenant != "" && tenant != client.AllTenants && tenant != before {
			return "", "", &app.Usage{Command: command, Err: fmt.Errorf("--tenant: %s, but the run is named %s", tenant, name)}
		}
		tenant = before
	}
	if tenant == "" || tenant == client.AllTenants {
		return "", "", &app.Usage{Command: command, Err: fmt.Errorf("--tenant: name the tenant of run %s, or call it TENANT/%s", runID, runID)}
	}
	if tenant != port.InvalidTenant && !agentrun.ValidID(tenant) || !agentrun.ValidID(runID) {
		return "", "", &app.Usage{Command: command, Err: fmt.Errorf("%q is no run", name)}
	}
	return tenant, runID, nil
}

// everyone is the tenant of a list.
func (a *asking) everyone() string {
	if a.Tenant == "" {
		return client.AllTenants
	}
	return a.Tenant
}

// person fills --by and checks what a change needs.
func (a *acting) person(env app.Env, command string) error {
	if a.By == "" {
		a.By = env.Getenv("USER")
	}
	if a.By == "" {
		return &app.Usage{Command: command, Err: errors.New("--by: say who you are ($USER is not set)")}
	}
	if a.Reason == "" {
		return &app.Usage{Command: command, Err: errors.New("--reason: say why; it is kept in the run's history")}
	}
	return nil
}

// refused is a call that was answered with a refusal.
type refused struct{ *client.OpError }

func (r *refused) Error() string { return terminal.Clean(r.Code) + ": " + terminal.Clean(r.Message) }

// away is why a call got no answer, which may be over in a moment.
type away struct{ error }

func (a *away) Unwrap() error { return a.error }

// call makes one operator call. The reply is printed as it came with --json, and so is a refusal.
func (d *desk) call(ctx context.Context, name, tenant string, request, reply any) (raw json.RawMessage, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	err = d.client.Call(ctx, name, tenant, request, &raw)
	var no *client.OpError
	switch {
	case err == nil:
		return raw, json.Unmarshal(raw, reply)
	case errors.As(err, &no):
		raw, err := strictjson.Marshal(operator.RefusalShape{Code: no.Code, Message: no.Message})
		if err != nil {
			return nil, err
		}
		return raw, &refused{no}
	case errors.Is(err, client.ErrNoReconciler):
		return nil, &away{errors.New("no reconciler answers: is one running on this NATS?")}
	case errors.Is(err, client.ErrNotAllowed):
		return nil, fmt.Errorf("this NATS user may not make the call (the user operator of deploy/nats/accounts.conf may): %w", bus.Denied(d.nc.LastError()))
	case errors.Is(err, context.DeadlineExceeded):
		return nil, &away{fmt.Errorf("no answer within %s (--timeout); the same command may be given again", d.timeout)}
	}
	return nil, &away{err}
}

// json prints a reply as one line.
func (d *desk) json(raw []byte) { d.out.Line("%s", strictjson.Compact(raw)) }

// list prints what several pages gave as one reply.
func (d *desk) list(name string, items []json.RawMessage, total int) error {
	data, err := strictjson.Marshal(map[string]any{"ok": true, name: items, "total": total})
	if err != nil {
		return err
	}
	d.json(data)
	return nil
}

// failed prints a refusal as JSON where that was asked for, so that a program need not read standard error.
func (d *desk) failed(asJSON bool, raw []byte, err error) error {
	if asJSON && raw != nil {
		d.json(raw)
	}
	return err
}

// confirm asks before something is done that cannot be undone. Without a terminal somebody must have said --yes.
func (d *desk) confirm(yes bool, format string, args ...any) error {
	if yes {
		return nil
	}
	question := terminal.Clean(fmt.Sprintf(format, args...))
	if !terminal.IsInput(d.env.Stdin) {
		return &app.Usage{Command: d.command, Err: fmt.Errorf("--yes: needed where nobody can be asked: %s?", question)}
	}
	fmt.Fprintf(d.env.Stderr, "%s? [y/N] ", question)
	line, err := bufio.NewReader(d.env.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was changed")
}

// jsonValue reads a flag that is JSON, or @FILE with it.
func jsonValue(command, flag, text string) (json.RawMessage, error) {
	if text == "" {
		return nil, nil
	}
	data := []byte(text)
	if name, ok := strings.CutPrefix(text, "@"); ok {
		var err error
		if data, err = os.ReadFile(name); err != nil {
			return nil, &app.Usage{Command: command, Err: fmt.Errorf("%s: %w", flag, err)}
		}
	}
	if err := strictjson.CheckJSON(data, strictjson.Bounds{MaxBytes: 1 << 20}); err != nil {
		return nil, &app.Usage{Command: command, Err: fmt.Errorf("%s: %w", flag, err)}
	}
	return strictjson.Compact(data), nil
}

// show prints a list that read brings: once, or with watch whenever it has changed.
func (d *desk) show(ctx context.Context, watch bool, read func(context.Context) (list []json.RawMessage, print func() error, err error)) error {
	last := ""
	once := func(ctx context.Context) error {
		list, print, err := read(ctx)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s.", list) // an empty list is shown too, the first time
		if watch && !d.out.Terminal() && last == text {
			return nil
		}
		last = text
		return print()
	}
	if watch {
		return d.watch(ctx, func(ctx context.Context) (bool, error) { return false, once(ctx) })
	}
	return once(ctx)
}

// watch shows something again and again until ctx ends or it is over; on a terminal in place. Once it has been shown, it waits
// where nobody answers, and says so once: the server, or the reconciler, comes back.
func (d *desk) watch(ctx context.Context, show func(context.Context) (over bool, err error)) error {
	seen, waits := false, false
	for {
		if d.out.Terminal() && !waits {
			fmt.Fprint(d.env.Stdout, "\x1b[H\x1b[2J")
		}
		over, err := show(ctx)
		gone := new(away)
		switch {
		case ctx.Err() == nil && seen && errors.As(err, &gone):
			if !waits {
				fmt.Fprintf(d.env.Stderr, "%s: waiting: %s\n", d.command, terminal.Clean(gone.Error()))
			}
			waits, over = true, false
		case over || err != nil && ctx.Err() == nil:
			return err
		default:
			seen, waits = true, false
		}
		timer := time.NewTimer(watchEvery)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// watchEvery is how often --watch looks; a test does not wait so long.
var watchEvery = 2 * time.Second
