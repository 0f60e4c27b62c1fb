package executor

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"regexp"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/pkg/connector"
)

// Options are what an executor or a reconciler in a program of your own is given. A field that is left out has the default
// of the command's flag; neither flags nor AGENTRUN_ variables are read.
type Options struct {
	// NATS is the server, or several separated by commas. Default nats://127.0.0.1:4222. Like the command, Run waits for a
	// server that is away.
	NATS string
	// NATSOptions are further options of the connection: credentials (nats.UserCredentials, nats.Nkey, nats.UserInfo), TLS
	// (nats.RootCAs, nats.ClientCert), nats.CustomInboxPrefix. Handlers, timeouts and how it reconnects are the runtime's.
	NATSOptions []nats.Option
	// JSDomain and JSPrefix say whose JetStream has the streams, see the flags --js-domain and --js-prefix. At most one.
	JSDomain, JSPrefix string
	// EmbeddedNATS runs a NATS server in this process, which listens at NATS (port 0 takes a free one, see Running) and keeps
	// its streams under Data: for tests, and for a service that is one process. Executors only.
	EmbeddedNATS bool

	// ConfigFile is the config file; Config is the same, YAML or JSON, as bytes. At most one. Without either there are Tools
	// and the built-in defaults: each job then names its owner, workflow and actor.
	ConfigFile string
	Config     []byte
	// Lookup is for ${NAME} in the config. Default os.LookupEnv.
	Lookup func(name string) (value string, set bool)
	// Reload: each message reads ConfigFile again, as SIGHUP does in the command.
	Reload <-chan struct{}
	// Tools are tools in Go, beside those of the config. One without a retry policy has the config's.
	Tools []*connector.Tool

	// ID names this process in logs and records. Default: the host's name; give each of several in a process one of its own.
	ID string
	// Data is the directory of the journal, which nobody else may have: a journal that is lost costs lookups, so it lies on
	// a disk that lives longer than the process. Required for executors, and for them only.
	Data string
	// Queues to pull from (default "default"), and Concurrency, the calls in flight at once (default 64). Executors only.
	Queues      []string
	Concurrency int
	// DrainTimeout is how long calls in flight may go on when ctx has ended. Default 30 s, at most 1 h; a nanosecond is none.
	// Executors only.
	DrainTimeout time.Duration
	// Lease is how long a silent process keeps what it works on. Default 30 s, the same in the whole fleet.
	Lease time.Duration

	// HTTP is the address of /healthz, /readyz and /metrics; "": none. Endpoints is given the same as a handler, when it can
	// answer, for a server of your own; /metrics has this executor only. May be nil.
	HTTP      string
	Endpoints func(http.Handler)

	// Limits of the streams, as the flags have them. Zero is the flag's default.
	Replicas     int
	RunRetention time.Duration
	MaxRuns      int64
	MaxJobs      int64
	MaxLetters   int64

	// Logger gets the log. Nil: there is none.
	Logger *slog.Logger
	// OnReady is called once, when the start is over. It must return soon. May be nil.
	OnReady func(Running)
}

// Running says where a process that is ready can be reached.
type Running struct {
	NATS string // Options.NATS, with the real port of an embedded server
	HTTP string // host:port, "" if Options.HTTP is
}

// Run is executor serve inside a program of your own, such as a service or a test: it works until ctx ends, then drains (no
// new jobs, calls in flight finish within DrainTimeout, what is known of the others is written down) and returns nil. Any
// error means that it could not start, or had to stop because somebody else works on a copy of its journal; a server that is
// away is none. When Run returns, nothing of it is left but Go tools that ignore their context.
//
// Run handles no signals, ends no process, writes to no standard file and changes nothing of the process's: no default
// logger, no settings of the collector, no exporter of traces. Any number of executors and reconcilers can work in one
// process, each executor with a Data of its own. On Linux, command tools and MCP servers start this program's executable a
// second time, see the package's comment.
func Run(ctx context.Context, o Options) error {
	var c app.ExecutorConfig
	if o.Data == "" {
		return errors.New("executor: Data: name the directory of the journal")
	}
	running, err := o.fill(&c, &c.Process)
	if err != nil {
		return err
	}
	c.Data, c.EmbeddedNATS = o.Data, o.EmbeddedNATS
	if o.Queues != nil {
		c.Queues = o.Queues
	}
	c.Concurrency = cmp.Or(o.Concurrency, c.Concurrency)
	c.DrainTimeout = cmp.Or(o.DrainTimeout, c.DrainTimeout)
	c.OnNATS = func(url string) { running.NATS = url }
	if err := named(c.Complete()); err != nil {
		return err
	}
	return named(app.Executor(ctx, c))
}

// RunReconciler is Run for reconciler serve. It must have the tools that the executors have, see Reconciler. What Options
// have for executors only is refused.
func RunReconciler(ctx context.Context, o Options) error {
	var c app.ReconcilerConfig
	if o.Data != "" || o.Queues != nil || o.Concurrency != 0 || o.DrainTimeout != 0 || o.EmbeddedNATS {
		return errors.New("executor: Data, Queues, Concurrency, DrainTimeout and EmbeddedNATS are an executor's: a reconciler has no journal and pulls no jobs")
	}
	if _, err := o.fill(&c, &c.Process); err != nil {
		return err
	}
	if err := named(c.Complete()); err != nil {
		return err
	}
	return named(app.Reconciler(ctx, c))
}

// noConfig is the config of a program that has its tools in Go and needs nothing else.
const noConfig = `{"tools": {}}`

// fill puts what both processes have into the flags of one: first the defaults, then what o says.
func (o *Options) fill(flags any, p *app.Process) (*Running, error) {
	if err := app.Fill(flags, nil); err != nil {
		return nil, err
	}
	switch {
	case o.ConfigFile != "" && o.Config != nil:
		return nil, errors.New("executor: ConfigFile and Config: name one of them")
	case o.ConfigFile == "" && o.Config == nil && len(o.Tools) == 0:
		return nil, errors.New("executor: ConfigFile, Config, Tools: there is nothing to call; name one of them")
	case o.ConfigFile == "" && o.Config == nil:
		o.Config = []byte(noConfig)
	}
	p.NATS, p.JSDomain, p.JSPrefix = cmp.Or(o.NATS, p.NATS), o.JSDomain, o.JSPrefix
	p.Inbox = "" // or it would win over what NATSOptions say
	p.Config, p.ID, p.HTTP = o.ConfigFile, o.ID, o.HTTP
	p.Lease = cmp.Or(o.Lease, p.Lease)
	p.Replicas = cmp.Or(o.Replicas, p.Replicas)
	p.RunRetention = cmp.Or(o.RunRetention, p.RunRetention)
	p.MaxRuns = cmp.Or(o.MaxRuns, p.MaxRuns)
	p.MaxJobs = cmp.Or(o.MaxJobs, p.MaxJobs)
	p.MaxLetters = cmp.Or(o.MaxLetters, p.MaxLetters)
	running := &Running{NATS: p.NATS}
	p.Seams = app.Seams{
		Guest: true, ConfigData: o.Config, NATSOptions: o.NATSOptions, Endpoints: o.Endpoints,
		Logger: o.Logger, Lookup: o.Lookup, Reload: o.Reload, Tools: o.Tools,
		OnReady: func(addr string) {
			if running.HTTP = addr; o.OnReady != nil {
				o.OnReady(*running)
			}
		},
	}
	return running, nil
}

// fields are the names in Options of the flags that can be wrong.
var fields = map[string]string{
	"--nats": "NATS", "--js-domain": "JSDomain", "--js-prefix": "JSPrefix", "--embedded-nats": "EmbeddedNATS", "--config": "ConfigFile", "--id": "ID", "--lease": "Lease", "--http": "HTTP",
	"--replicas": "Replicas", "--run-retention": "RunRetention", "--max-runs": "MaxRuns", "--max-jobs": "MaxJobs",
	"--max-letters": "MaxLetters", "--data": "Data", "--queues": "Queues", "--concurrency": "Concurrency", "--drain-timeout": "DrainTimeout",
}

var flag = regexp.MustCompile(`--[a-z-]+`)

// fault is an error whose text names fields where the command's names flags.
type fault struct {
	error
	text string
}

func (f *fault) Error() string { return f.text }
func (f *fault) Unwrap() error { return f.error }

func named(err error) error {
	if err == nil {
		return nil
	}
	text := flag.ReplaceAllStringFunc(err.Error(), func(name string) string { return cmp.Or(fields[name], name) })
	return &fault{err, "executor: " + text}
}
