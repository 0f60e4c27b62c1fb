package fieldcases

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/internal/journal"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/internal/topology"
)

// A fixture is what a fleet of one version left behind when its processes were killed: every stream, one executor's
// journal, the config file and the provider's ledger. testdata/v1 and so on; a directory is written once, by
// TestWriteFixture, and never changed.
type fixture struct {
	dir   string
	about about
}

type about struct {
	WrittenAt time.Time `json:"written_at"`
	Build     string    `json:"build"`
}

// ledger is the provider's, and how often each operation was called.
type ledger struct {
	Rows  map[string][]row `json:"rows"`
	Calls map[string]int   `json:"calls"`
}

// fixtures are all versions whose fixtures are kept.
func fixtures(t *testing.T) []*fixture {
	t.Helper()
	dirs, err := filepath.Glob("testdata/v*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	var out []*fixture
	for _, dir := range dirs {
		out = append(out, fixtureIn(t, dir))
	}
	return out
}

func fixtureIn(t *testing.T, dir string) *fixture {
	t.Helper()
	f := &fixture{dir: dir}
	readJSON(t, filepath.Join(dir, "about.json"), &f.about)
	return f
}

func (f *fixture) version() string { return filepath.Base(f.dir) }

// stored is one message of a stream's fixture.
type stored struct {
	Subject string
	Seq     uint64
	Header  nats.Header
	Data    []byte
}

var fixtureStreams = []string{
	topology.RunsStream, topology.LettersStream, topology.ResultsStream, topology.AlertsStream, topology.WakesStream, topology.JobsStream,
}

// fromRead are headers that the server adds to what it reads out.
var fromRead = map[string]bool{"Nats-Sequence": true, "Nats-Stream": true, "Nats-Subject": true, "Nats-Time-Stamp": true}

// A message's fixture is like a mail: a line with its sequence and subject, its headers, an empty line, its data in one
// line.
func (m *stored) write(w io.Writer) {
	fmt.Fprintf(w, "%d %s\n", m.Seq, m.Subject)
	for _, k := range slices.Sorted(maps.Keys(m.Header)) {
		if !fromRead[k] {
			fmt.Fprintf(w, "%s: %s\n", k, m.Header.Get(k))
		}
	}
	fmt.Fprintf(w, "\n%s\n", m.Data)
}

// messages reads a stream's fixture.
func (f *fixture) messages(t *testing.T, stream string) []stored {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(f.dir, stream+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	var out []stored
	lines := strings.Split(string(data), "\n")
	for len(lines) > 1 {
		seq, subject, _ := strings.Cut(lines[0], " ")
		m := stored{Subject: subject, Header: nats.Header{}}
		if m.Seq, err = strconv.ParseUint(seq, 10, 64); err != nil {
			t.Fatalf("%s of %s: %v", stream, f.version(), err)
		}
		for lines = lines[1:]; lines[0] != ""; lines = lines[1:] {
			k, v, _ := strings.Cut(lines[0], ": ")
			m.Header[k] = []string{v} // as it is written: NATS tells headers apart by case
		}
		m.Data = []byte(lines[1])
		lines = lines[2:]
		out = append(out, m)
	}
	return out
}

var timeText = regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"`)

// since moves every time of a message by d, as if it had been written that much later.
func (m *stored) since(d time.Duration) {
	const layout = `"2006-01-02T15:04:05.000Z"`
	m.Data = timeText.ReplaceAllFunc(m.Data, func(text []byte) []byte {
		at, err := time.Parse(layout, string(text))
		if err != nil {
			return text
		}
		return []byte(at.Add(d).Format(layout))
	})
	if ms, err := strconv.ParseInt(m.Header.Get("Agentrun-Due"), 10, 64); err == nil {
		m.Header.Set("Agentrun-Due", strconv.FormatInt(ms+d.Milliseconds(), 10))
	}
	for k := range m.Header {
		if strings.HasPrefix(k, "Nats-Expected-") || fromRead[k] {
			m.Header.Del(k)
		}
	}
}

// load makes a world of a fixture: as it was when its fleet was killed, a moment ago.
func (f *fixture) load(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 2*time.Second)
	config, err := os.ReadFile(filepath.Join(f.dir, "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.config, bytes.ReplaceAll(config, []byte("PROVIDER"), []byte(w.provider.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	var l ledger
	readJSON(t, filepath.Join(f.dir, "ledger.json"), &l)
	w.provider.mu.Lock()
	w.provider.rows, w.provider.nth = l.Rows, l.Calls
	w.provider.mu.Unlock()
	later := time.Since(f.about.WrittenAt).Truncate(time.Millisecond)
	var configs []jetstream.StreamConfig
	readJSON(t, filepath.Join(f.dir, "streams.json"), &configs)
	for _, c := range configs {
		w.restore(c, f.messages(t, c.Name), later)
	}
	return w
}

// restore makes a stream with these messages at their sequences.
func (w *world) restore(c jetstream.StreamConfig, messages []stored, later time.Duration) {
	w.t.Helper()
	ctx, cancel := w.deadline()
	defer cancel()
	s, err := w.js.CreateStream(ctx, c)
	if err != nil {
		w.t.Fatalf("stream %s: %v", c.Name, err)
	}
	filler := strings.TrimSuffix(c.Subjects[0], ">") + "filler"
	next := max(c.FirstSeq, 1)
	for _, m := range messages {
		for ; next < m.Seq; next++ {
			if _, err := w.js.Publish(ctx, fmt.Sprintf("%s.%d", filler, next), nil); err != nil {
				w.t.Fatalf("stream %s: %v", c.Name, err)
			}
			if err := s.DeleteMsg(ctx, next); err != nil {
				w.t.Fatalf("stream %s: %v", c.Name, err)
			}
		}
		m.since(later)
		ack, err := w.js.PublishMsg(ctx, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data})
		if err != nil || ack.Sequence != m.Seq {
			w.t.Fatalf("stream %s: message %d: %+v, %v", c.Name, m.Seq, ack, err)
		}
		next++
	}
}

// save writes what a world's streams and provider have, beside what the caller adds.
func (w *world) save(dir string, journalDir, build string) {
	w.t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := w.deadline()
	defer cancel()
	var configs []jetstream.StreamConfig
	for _, name := range fixtureStreams {
		s, err := w.js.Stream(ctx, name)
		if err != nil {
			w.t.Fatal(err)
		}
		info := s.CachedInfo()
		info.Config.Metadata = nil // what the server says of itself
		configs = append(configs, info.Config)
		var b bytes.Buffer
		for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
			m, err := s.GetMsg(ctx, seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue
			}
			if err != nil {
				w.t.Fatal(err)
			}
			(&stored{Subject: m.Subject, Seq: m.Sequence, Header: m.Header, Data: m.Data}).write(&b)
		}
		writeFile(w.t, filepath.Join(dir, name+".txt"), b.Bytes())
	}
	w.provider.mu.Lock()
	l := ledger{Rows: w.provider.rows, Calls: w.provider.nth}
	writeJSON(w.t, filepath.Join(dir, "ledger.json"), l)
	w.provider.mu.Unlock()
	writeJSON(w.t, filepath.Join(dir, "streams.json"), configs)
	writeJSON(w.t, filepath.Join(dir, "about.json"), about{time.Now().UTC().Truncate(time.Millisecond), build})
	config, err := os.ReadFile(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	writeFile(w.t, filepath.Join(dir, "config.yaml"), bytes.ReplaceAll(config, []byte(w.provider.URL), []byte("PROVIDER")))
	if err := os.CopyFS(filepath.Join(dir, "data"), os.DirFS(journalDir)); err != nil {
		w.t.Fatal(err)
	}
	writeFile(w.t, filepath.Join(dir, "facts.jsonl"), facts(w.t, journalDir))
}

// facts is what a journal says, one fact a line.
func facts(t *testing.T, dir string) []byte {
	t.Helper()
	var out []byte
	err := journal.List(app.JournalPath(dir), func(f engine.Fact) error {
		line, err := strictjson.Marshal(f)
		out = append(append(out, line...), '\n')
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func writeJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, append(data, '\n'))
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// op makes an operator call, which must be answered.
func (w *world) op(call string, request map[string]any) map[string]any {
	w.t.Helper()
	data, err := json.Marshal(request)
	if err != nil {
		w.t.Fatal(err)
	}
	var reply map[string]any
	bustest.Eventually(w.t, call+" is answered", func() bool {
		m, err := w.nc.Request("agentrun.op."+call+"."+tenant, data, 10*time.Second)
		return err == nil && json.Unmarshal(m.Data, &reply) == nil && reply["code"] != "UNAVAILABLE"
	})
	if reply["ok"] != true {
		w.t.Errorf("%s %v: %v", call, request, reply)
	}
	return reply
}
