// Package app wires the processes together: it knows every part and decides nothing. Executor and Reconciler run a
// process from its flags until their context ends.
package app

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/trace"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/run"
)

// Connection says how NATS is reached.
type Connection struct {
	NATS    string `name:"nats" default:"nats://127.0.0.1:4222" placeholder:"URL" help:"NATS server, or several separated by commas."`
	Creds   string `name:"creds" placeholder:"FILE" help:"NATS credentials file."`
	TLSCA   string `name:"tls-ca" placeholder:"FILE" help:"PEM file with the authorities that the NATS server's certificate is checked against."`
	TLSCert string `name:"tls-cert" placeholder:"FILE" help:"PEM file with the client certificate for NATS."`
	TLSKey  string `name:"tls-key" placeholder:"FILE" help:"PEM file with the client certificate's key."`
	Inbox   string `name:"inbox-prefix" default:"_INBOX" placeholder:"SUBJECT" help:"Where NATS sends replies to this process; users with permissions of their own have a prefix of their own."`

	JSDomain string `name:"js-domain" placeholder:"NAME" help:"JetStream domain that has the streams: that of the hub, for a process at a leaf node."`
	JSPrefix string `name:"js-prefix" placeholder:"SUBJECT" help:"What this account imports another's $JS.API as, for example agentrun.hub.API."`
}

// Process is what executor serve and reconciler serve share.
type Process struct {
	Connection   `embed:""`
	Config       string        `name:"config" placeholder:"FILE" help:"Config file with defaults and tools."`
	ID           string        `name:"id" placeholder:"NAME" help:"Name of this process in logs and records (default: host name)."`
	Lease        time.Duration `name:"lease" default:"30s" placeholder:"D" help:"How long a silent process keeps what it works on."`
	HTTP         string        `name:"http" default:"127.0.0.1:9464" placeholder:"ADDR" help:"Address of /healthz, /readyz and /metrics."`
	Replicas     int           `name:"replicas" default:"1" placeholder:"N" help:"Copies of each stream in a NATS cluster."`
	RunRetention time.Duration `name:"run-retention" default:"168h" placeholder:"D" help:"How long an ended run is remembered."`
	MaxRuns      int64         `name:"max-runs" default:"4000000" placeholder:"N" help:"Most runs that are remembered."`
	MaxJobs      int64         `name:"max-jobs" default:"1000000" placeholder:"N" help:"Most jobs that wait in the queue; further ones are refused."`
	MaxLetters   int64         `name:"max-letters" default:"1000000" placeholder:"N" help:"Most open dead letters."`
	LogFormat    string        `name:"log-format" default:"text" placeholder:"text|json" help:"Form of the log on standard error."`
	LogLevel     string        `name:"log-level" default:"info" placeholder:"LEVEL" help:"debug, info, warn or error."`

	Seams `kong:"-"`
}

// Seams are what a caller in the same process hands over instead of flags: the command gives the log's writer, tests and
// the demo want to know when the process is ready, and a program of somebody else's has its own idea of most things.
type Seams struct {
	// Guest: the program is not the command. What belongs to the whole process is left alone: the traces that its
	// environment asks for, the collector's settings. HTTP may be empty: no address is listened at.
	Guest       bool
	ConfigData  []byte             // the config itself, instead of the file; may be nil
	NATSOptions []nats.Option      // of the connection, beside the flags'; those that the runtime relies on win
	Endpoints   func(http.Handler) // told of /healthz, /readyz and /metrics when there is something to answer; may be nil

	Log     io.Writer                        // where the log goes; nil discards it
	Logger  *slog.Logger                     // wins over Log, LogFormat and LogLevel when set
	Lookup  func(name string) (string, bool) // for ${NAME} in the config file; nil is os.LookupEnv
	OnReady func(httpAddr string)            // called once, when the process is ready; may be nil
	OnNATS  func(url string)                 // told where the server of EmbeddedNATS is reached; may be nil
	Reload  <-chan struct{}                  // each message reloads the config file; may be nil
	Tools   []*connector.Tool                // of the program itself, beside those of the config file
	Tracer  *trace.Tracer                    // shows calls in traces, and stays the caller's; nil: as the environment says
}

// ExecutorConfig is executor serve's flags.
type ExecutorConfig struct {
	Process      `embed:""`
	Data         string        `name:"data" placeholder:"DIR" help:"Directory of the journal (default: ./data/<id>)."`
	Queues       []string      `name:"queues" default:"default" placeholder:"a,b" help:"Queues to pull from."`
	Concurrency  int           `name:"concurrency" default:"64" placeholder:"N" help:"Calls in flight at once."`
	DrainTimeout time.Duration `name:"drain-timeout" default:"30s" placeholder:"D" help:"How long calls in flight may go on after a stop signal."`
	EmbeddedNATS bool          `name:"embedded-nats" help:"Run a NATS server in this process, listening at --nats, its store under --data."`
}

// ReconcilerConfig is reconciler serve's flags.
type ReconcilerConfig struct {
	Process `embed:""`
}

var (
	hostName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$`)
	inboxPrefix = regexp.MustCompile(`^([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)?$`)
)

// Complete fills the defaults that depend on the machine or on other flags, and checks every bound; the error is one line
// that names the flag and the bound. (kong would call a method named Validate by itself, and prefix its error.)
func (c *ExecutorConfig) Complete() error {
	if err := c.Process.Complete(); err != nil {
		return err
	}
	if c.Data == "" {
		c.Data = filepath.Join("data", c.ID)
	}
	if len(c.Queues) == 0 {
		return fmt.Errorf("--queues: name at least one queue")
	}
	for i, q := range c.Queues {
		if !run.ValidID(q) {
			return fmt.Errorf("--queues: %q is no queue name (letters, digits, _ and -, at most 64, the first a letter or digit)", q)
		}
		if slices.Contains(c.Queues[:i], q) {
			return fmt.Errorf("--queues: %q is named twice", q)
		}
	}
	if err := within("--concurrency", int64(c.Concurrency), 1, 65536); err != nil {
		return err
	}
	if err := span("--drain-timeout", c.DrainTimeout, 0, time.Hour); err != nil {
		return err
	}
	if c.EmbeddedNATS {
		if _, err := EmbeddedAddr(c.NATS); err != nil {
			return err
		}
		if c.JSPrefix != "" {
			return fmt.Errorf("--js-prefix: an embedded server has one account, which imports nothing")
		}
	}
	return nil
}

// Complete is ExecutorConfig.Complete for what both processes share.
func (c *Process) Complete() error {
	if err := c.Connection.Check(); err != nil {
		return err
	}
	if c.Config == "" && c.ConfigData == nil {
		return fmt.Errorf("--config: name the config file with the tools")
	}
	if c.ID == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--id: the host has no name (%v): name this process", err)
		}
		c.ID = host
	}
	if !hostName.MatchString(c.ID) {
		return fmt.Errorf("--id: %q is no name (letters, digits, '.', '_' and '-', at most 253, the first a letter or digit)", c.ID)
	}
	if err := span("--lease", c.Lease, 200*time.Millisecond, time.Hour); err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(c.HTTP); err != nil && (c.HTTP != "" || !c.Guest) {
		return fmt.Errorf("--http: %q is not host:port", c.HTTP)
	}
	if err := within("--replicas", int64(c.Replicas), 1, 5); err != nil {
		return err
	}
	if err := span("--run-retention", c.RunRetention, time.Second, 10*365*24*time.Hour); err != nil {
		return err
	}
	for _, n := range []struct {
		flag  string
		value int64
	}{{"--max-runs", c.MaxRuns}, {"--max-jobs", c.MaxJobs}, {"--max-letters", c.MaxLetters}} {
		if err := within(n.flag, n.value, 1, 1e12); err != nil {
			return err
		}
	}
	if err := oneOf("--log-format", c.LogFormat, "text", "json"); err != nil {
		return err
	}
	return oneOf("--log-level", c.LogLevel, "debug", "info", "warn", "error")
}

// Check refuses flags of a connection that cannot work, with one line that names the flag.
func (c *Connection) Check() error {
	for _, s := range strings.Split(c.NATS, ",") {
		u, err := url.Parse(strings.TrimSpace(s))
		if err != nil || u.Host == "" {
			return fmt.Errorf("--nats: %q is no URL like nats://127.0.0.1:4222", withoutPassword(s))
		}
		if !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return fmt.Errorf("--nats: %q begins with none of nats://, tls://, ws://, wss://", withoutPassword(s))
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return fmt.Errorf("--tls-cert and --tls-key: name both or neither")
	}
	if !inboxPrefix.MatchString(c.Inbox) {
		return fmt.Errorf("--inbox-prefix: %q is no subject (letters, digits, _ and -, in tokens separated by '.')", c.Inbox)
	}
	if err := c.API().Check(); err != nil {
		flag := map[bool]string{true: "--js-domain", false: "--js-prefix"}[errors.Is(err, bus.ErrDomain)]
		if errors.Is(err, bus.ErrTwoAPIs) {
			flag = "--js-domain and --js-prefix"
		}
		return fmt.Errorf("%s: %w", flag, err)
	}
	for _, f := range []struct{ flag, file string }{{"--creds", c.Creds}, {"--tls-ca", c.TLSCA}, {"--tls-cert", c.TLSCert}, {"--tls-key", c.TLSKey}} {
		if f.file == "" {
			continue
		}
		if _, err := os.Stat(f.file); err != nil {
			return fmt.Errorf("%s: %w", f.flag, err)
		}
	}
	return nil
}

// withoutPassword is a URL that may be shown: everything before its @ may be a secret.
func withoutPassword(s string) string {
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		return "…" + s[i:]
	}
	return s
}

func within(flag string, v, low, high int64) error {
	if v < low || v > high {
		return fmt.Errorf("%s: %d is out of bounds, must be from %d to %d", flag, v, low, high)
	}
	return nil
}

func span(flag string, v, low, high time.Duration) error {
	if v < low || v > high {
		return fmt.Errorf("%s: %s is out of bounds, must be from %s to %s", flag, v, low, high)
	}
	return nil
}

func oneOf(flag, v string, words ...string) error {
	if !slices.Contains(words, v) {
		return fmt.Errorf("%s: %q is none of %s", flag, v, strings.Join(words, ", "))
	}
	return nil
}
