package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/fleet"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/connector"
)

// Health is what a check of Doctor came to.
type Health int

// From what needs nothing to what must be mended.
const (
	Well Health = iota
	Doubtful
	Ill
)

func (h Health) String() string { return [...]string{"ok", "warning", "wrong"}[h] }

// Finding is one line of Doctor's table. Fix is empty where nothing is to be done.
type Finding struct {
	Check  string
	Health Health
	Found  string
	Fix    string
}

// The oldest server that has what the streams need (a time to live for each message), and the one that all tests run with.
const (
	serverOldest = "2.11"
	serverTested = "2.15"
	// payloadMin holds the largest record or letter with its headers, in bytes.
	payloadMin = 1 << 20
	// payloadLeast leaves a record room beside what its end needs.
	payloadLeast = 32 << 10
	clockOffMax  = time.Second
	probeTimeout = 3 * time.Second
)

// doctor collects findings.
type doctor struct {
	ExecutorConfig
	findings []Finding
	mu       sync.Mutex
	file     *config.File // nil: it cannot be read
	known    port.Known   // what the journal remembers of the store; zero: it cannot be read now
	refused  []string     // what the server said about permissions
	asked    string       // the subject of the question that waits for its answer
	giveUp   func(error)  // ends that question
}

func (d *doctor) find(check string, h Health, fix, format string, args ...any) {
	if h == Well {
		fix = ""
	}
	d.findings = append(d.findings, Finding{Check: check, Health: h, Found: fmt.Sprintf(format, args...), Fix: fix})
}

// Doctor looks at everything that an executor with these flags needs, and says what is wrong and how to mend it. It stores
// nothing and takes nothing: what it writes carries a condition that no server fulfils. An MCP server that is a program is
// started, asked and ended. monitor is the URL of the server's
// monitoring, "" if it cannot be asked.
func Doctor(ctx context.Context, c ExecutorConfig, monitor string) []Finding {
	d := &doctor{ExecutorConfig: c}
	d.journal()
	d.tools(ctx)
	d.server(ctx, monitor)
	return d.findings
}

func (d *doctor) journal() {
	path := JournalPath(d.Data)
	report, err := journal.Check(path)
	switch {
	case err == nil && len(report.Problems) > 0:
		d.find("journal", Ill, "keep the file; see Back up and restore in docs/operations.md", "%s is damaged: %s", path, report.Problems[0])
	case err == nil:
		d.known = report.Known
		d.find("journal", Well, "", "%s can be opened, and no process has it", path)
	case errors.Is(err, journal.ErrNewer):
		d.find("journal", Ill, "start the version that wrote it, or a later one; see Upgrade in docs/operations.md", "%v", err)
	case errors.Is(err, journal.ErrLocked):
		d.find("journal", Well, "", "%s is in use by a running executor", path)
	case errors.Is(err, fs.ErrNotExist):
		d.find("journal", Well, "", "%s is not there yet; executor serve makes it", path)
	default:
		d.find("journal", Ill, "put --data on a local disk of its own; executor journal check tells more", "%v", err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(d.Data, &disk); err != nil {
		d.find("journal disk", Doubtful, "make the directory, or let executor serve make it", "%s: %v", d.Data, err)
		return
	}
	free := float64(disk.Bavail) / float64(disk.Blocks)
	h := Well
	if free < 1-fullPercent/100.0 {
		h = Ill
	} else if free < 0.2 {
		h = Doubtful
	}
	d.find("journal disk", h, "make room: below a tenth nothing new is taken in", "%.0f %% free", free*100)
}

// tools asks the MCP servers, and dials the hosts of the tools that are called by HTTP.
func (d *doctor) tools(ctx context.Context) {
	file, _, err := config.Load(d.Config, d.lookup())
	if err != nil {
		d.find("config", Ill, "executor check --config "+d.Config+" names each fault with its line", "%s cannot be used", d.Config)
		return
	}
	d.file = file
	d.find("config", Well, "", "%s has %d tools", d.Config, len(file.Tools))
	d.mcpServers(ctx, file)
	dialed := map[string]bool{}
	dial := func(name string, kind connector.KindSpec) {
		if kind.HTTP == nil {
			return
		}
		host := hostOf(kind.HTTP.URL)
		if host == "" || dialed[host] {
			return
		}
		dialed[host] = true
		dialer := net.Dialer{Timeout: probeTimeout}
		conn, err := dialer.DialContext(ctx, "tcp", host)
		if err != nil {
			d.find("tool "+name, Ill, "start it, open the way to it, or correct its url", "%s cannot be reached", host)
			return
		}
		_ = conn.Close()
		d.find("tool "+name, Well, "", "%s can be reached", host)
	}
	for _, t := range file.Tools {
		dial(t.Name, t.Kind)
		if t.Verify != nil {
			dial(t.Name+" (verify)", t.Verify.Kind)
		}
	}
}

// hostOf is the host and port of a tool's URL; "" if args are part of them.
func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || strings.ContainsAny(u.Host, "{}") {
		return ""
	}
	if u.Port() != "" {
		return u.Host
	}
	port := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	return net.JoinHostPort(u.Hostname(), port)
}

func (d *doctor) server(ctx context.Context, monitor string) {
	nc, err := nats.Connect(d.NATS, append(options(d.Connection), nats.Name("executor doctor"), nats.Timeout(dialTimeout),
		nats.ErrorHandler(d.told))...)
	if err != nil {
		why, remedy := bus.Unreached(err)
		if remedy == "" {
			remedy = "start it, or correct --nats, --creds and --tls-…"
		}
		d.find("nats", Ill, remedy, "%s: %s", withoutPassword(d.NATS), why)
		return
	}
	defer nc.Close()
	version := nc.ConnectedServerVersion()
	switch {
	case older(version, serverOldest):
		d.find("nats", Ill, "upgrade the server: a time to live for each message came with "+serverOldest, "version %s", version)
	case older(version, serverTested):
		d.find("nats", Doubtful, "upgrade the server when you can", "version %s; tested with %s", version, serverTested)
	default:
		d.find("nats", Well, "", "version %s", version)
	}
	h := Well
	switch most := nc.MaxPayload(); {
	case most < payloadLeast:
		h = Ill
	case most < payloadMin:
		h = Doubtful
	}
	d.find("max payload", h, "set max_payload: 1MiB on every server: with less, runs, results and dead letters are bounded by it", "%d bytes", nc.MaxPayload())
	if !d.inbox(ctx, nc) {
		return
	}
	d.health(ctx, monitor)
	d.sync(ctx, monitor)
	js, err := d.API().JetStream(nc)
	if err != nil {
		d.find("jetstream", Ill, "", "%v", err)
		return
	}
	if !d.jetstream(ctx, js) {
		return
	}
	d.streams(ctx, js)
	d.generation(ctx, nc, js)
	d.consumers(ctx, js)
	d.queues(ctx, nc)
	d.executors(ctx, nc)
	d.ahead(ctx, nc)
	d.permissions(ctx, nc)
}

// ahead asks for a job that is not there, as an executor looks ahead in the queue.
func (d *doctor) ahead(ctx context.Context, nc *nats.Conn) {
	_, err := d.request(ctx, nc, d.API().Subject("DIRECT.GET."+topology.JobsStream), []byte(`{"last_by_subj":"agentrun.jobs.doctor.doctor.doctor"}`))
	if err != nil {
		d.find("fairness", Doubtful, "give this user the direct gets that deploy/nats/accounts.conf gives to executor; start an executor, which makes the stream answer them",
			"the queue cannot be read ahead (%v): jobs are taken first come, first served, without regard to tenants and priority", err)
		return
	}
	d.find("fairness", Well, "", "the queue can be read ahead")
}

// older compares versions by their first two numbers.
func older(version, than string) bool {
	number := func(v string) int {
		parts := strings.SplitN(v, ".", 3)
		if len(parts) < 2 {
			return 0
		}
		major, _ := strconv.Atoi(parts[0])
		minor, _ := strconv.Atoi(parts[1])
		return major*1000 + minor
	}
	return number(version) < number(than)
}

// sync asks the server's monitoring how it writes: a client cannot see it.
func (d *doctor) sync(ctx context.Context, monitor string) {
	const fix = "set sync_interval: always in the server's jetstream block, or run three servers and --replicas 3"
	if d.Replicas > 1 {
		d.find("sync", Well, "", "%d copies of each stream", d.Replicas)
		return
	}
	if monitor == "" {
		d.find("sync", Doubtful, "name the server's monitoring (--monitor http://nats:8222), or see to it: "+fix, "not visible to a client")
		return
	}
	var v struct {
		JetStream struct {
			Config struct {
				SyncAlways   bool          `json:"sync_always"`
				SyncInterval time.Duration `json:"sync_interval"`
			} `json:"config"`
		} `json:"jetstream"`
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(monitor, "/")+"/varz", nil)
	var resp *http.Response
	if err == nil {
		resp, err = http.DefaultClient.Do(req)
	}
	if err == nil {
		err = json.NewDecoder(resp.Body).Decode(&v)
		_ = resp.Body.Close()
	}
	switch {
	case err != nil:
		d.find("sync", Doubtful, "correct --monitor", "%s does not answer as a NATS server's monitoring does", monitor)
	case !v.JetStream.Config.SyncAlways:
		d.find("sync", Ill, fix, "every %s: a power loss may take that much of what was acknowledged", v.JetStream.Config.SyncInterval)
	default:
		d.find("sync", Well, "", "always")
	}
}

func (d *doctor) consumers(ctx context.Context, js jetstream.JetStream) {
	for _, queue := range d.Queues {
		name := topology.ConsumerName(queue)
		var c jetstream.Consumer
		err := d.ask(ctx, d.API().Subject("CONSUMER.INFO."+topology.JobsStream+"."+name), func(ctx context.Context) (err error) {
			c, err = js.Consumer(ctx, topology.JobsStream, name)
			return err
		})
		switch {
		case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
			d.find("queue "+queue, Doubtful, "start an executor: it makes the consumer", "not pulled yet")
		case err != nil:
			d.find("queue "+queue, Ill, "give this user the lines of deploy/nats/accounts.conf with "+name, "not readable: %v", err)
		default:
			info := c.CachedInfo()
			if info.Paused {
				d.find("queue "+queue, Ill, "nats consumer resume "+topology.JobsStream+" "+name+", and the same of "+topology.WakesStream, "its consumer is paused: nothing is delivered")
				continue
			}
			h := Well
			if info.NumPending > 0 && info.NumWaiting == 0 {
				h = Doubtful
			}
			d.find("queue "+queue, h, "are executors ready, and have they free slots?", "%d jobs wait, %d are in hands, %d requests for more",
				info.NumPending, info.NumAckPending, info.NumWaiting)
		}
	}
}

// unfulfilled is a condition on a subject's last sequence that no server fulfils: what carries it is refused, not stored.
const unfulfilled = "9007199254740991"

// permissions tries what an executor must be able to write, with a condition under which nothing is stored.
func (d *doctor) permissions(ctx context.Context, nc *nats.Conn) {
	var missing []string
	for _, subject := range []string{
		"agentrun.runs.doctor.doctor", "agentrun.results.doctor.doctor.step", "agentrun.deadletters.doctor.doctor.doctor",
		"agentrun.alerts.doctor.doctor.doctor", "agentrun.wakes." + d.Queues[0] + ".doctor.doctor",
	} {
		m := &nats.Msg{Subject: subject, Reply: nc.NewInbox(), Header: nats.Header{"Nats-Expected-Last-Subject-Sequence": {unfulfilled}}}
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		err := nc.PublishMsg(m)
		if err == nil {
			err = nc.FlushWithContext(ctx) // a refusal comes before the answer to a ping sent after what is refused
		}
		cancel()
		if last := nc.LastError(); err != nil || last != nil && strings.Contains(last.Error(), subject) {
			missing = append(missing, "publish to "+subject)
		}
	}
	d.mu.Lock()
	for _, text := range d.refused {
		if !strings.Contains(text, "doctor") && !strings.Contains(text, topology.OpSubject("queues.list", port.AllTenants)) && !strings.Contains(text, topology.HintSubject(fleet.Hint)) { // those are named already
			missing = append(missing, text)
		}
	}
	d.mu.Unlock()
	if len(missing) > 0 {
		d.find("permissions", Ill, "give this user what deploy/nats/accounts.conf gives to executor, and its --inbox-prefix", "%s", strings.Join(missing, "; "))
		return
	}
	d.find("permissions", Well, "", "nothing that was tried is refused")
}
