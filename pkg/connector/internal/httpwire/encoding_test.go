package httpwire

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

func encode(t testing.TB, coding string, parts ...string) []byte {
	t.Helper()
	return bytes.Join(encodeParts(t, coding, parts...), nil)
}

// encodeParts is a body as a server would send it that flushes after each part, and its end.
func encodeParts(t testing.TB, coding string, parts ...string) (sent [][]byte) {
	t.Helper()
	var out bytes.Buffer
	taken := func() {
		sent = append(sent, bytes.Clone(out.Bytes()))
		out.Reset()
	}
	var w interface {
		io.WriteCloser
		Flush() error
	}
	switch coding {
	case "gzip", "x-gzip":
		w = gzip.NewWriter(&out)
	case "deflate":
		w = zlib.NewWriter(&out)
	case "bare deflate":
		w, _ = flate.NewWriter(&out, 9)
	case "zstd":
		w, _ = zstd.NewWriter(&out)
	case "br":
		w = brotli.NewWriter(&out)
	default:
		t.Fatalf("no encoder for %s", coding)
	}
	for _, p := range parts {
		if _, err := io.WriteString(w, p); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		taken()
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	taken()
	return sent
}

func answer(coding string, body []byte) *http.Response {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Encoding": {strings.TrimPrefix(coding, "bare ")}},
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: -1, Request: &http.Request{Method: http.MethodPost},
	}
}

var codings = []string{"gzip", "x-gzip", "deflate", "bare deflate", "zstd", "br"}

func TestEncodings(t *testing.T) {
	const limit = 1 << 16
	long := strings.Repeat(`{"n":1},`, limit/8)
	for _, coding := range codings {
		read := func(name string, body []byte, want string, how Reading) {
			t.Helper()
			if b, reading := ReadBody(answer(coding, body), limit); string(b) != want || reading != how {
				t.Errorf("%s, %s: %d, %d bytes", coding, name, reading, len(b))
			}
		}
		whole := encode(t, coding, `{"a":1}`)
		read("a body", whole, `{"a":1}`, Whole)
		read("nothing", nil, "", Whole)
		read("nothing, encoded", encode(t, coding), "", Whole)
		read("as long as may be", encode(t, coding, long), long, Whole)
		read("one byte longer", encode(t, coding, long, "x"), "", TooLarge)
		read("something behind it", append(bytes.Clone(whole), "more"...), "", Broken)
		read("not encoded at all", []byte(`{"a":1}`), "", Broken)
		for n := 1; n < len(whole); n++ {
			if b, reading := ReadBody(answer(coding, whole[:n]), limit); reading != Broken {
				t.Errorf("%s, cut after %d of %d bytes: %d, %q", coding, n, len(whole), reading, b)
			}
		}
	}
}

// A bomb ends at the limit, whatever it would become, and one that becomes nothing ends at it too.
func TestBombs(t *testing.T) {
	const limit = 1 << 12
	zeros := strings.Repeat("\x00", 1<<22)
	for _, coding := range codings {
		in := &counting{r: bytes.NewReader(encode(t, coding, zeros))}
		resp := answer(coding, nil)
		resp.Body = io.NopCloser(in)
		if b, reading := ReadBody(resp, limit); reading != TooLarge || b != nil || in.n > 2*limit {
			t.Errorf("%s: %d after %d bytes", coding, reading, in.n)
		}
	}
	for coding, member := range map[string][]byte{"gzip": encode(t, "gzip"), "zstd": {0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0}} {
		if _, reading := ReadBody(answer(coding, bytes.Repeat(member, limit)), limit); reading != TooLarge {
			t.Errorf("%s that becomes nothing: %d", coding, reading)
		}
	}
	// A window that is larger than any over HTTP may be is not set aside.
	window := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00} // a frame of 2 GiB, empty
	if _, reading := ReadBody(answer("zstd", window), limit); reading != Broken {
		t.Errorf("a window of 2 GiB: %d", reading)
	}
}

type counting struct {
	r io.Reader
	n int
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += n
	return n, err
}

func TestForeignEncodings(t *testing.T) {
	zipped := encode(t, "gzip", "{}")
	for coding, want := range map[string]Reading{
		"identity": Whole, "": Whole, "Identity, identity": Whole, "GZIP": Broken, // "{}" is no gzip
		"compress": Foreign, "aws-chunked": Foreign, "gzip, gzip": Foreign, "br,gzip": Foreign,
	} {
		if b, reading := ReadBody(answer(coding, []byte("{}")), 100); reading != want || (reading == Whole) != (string(b) == "{}") {
			t.Errorf("%q: %d, %q", coding, reading, b)
		}
	}
	if b, reading := ReadBody(answer("identity, gzip", zipped), 100); reading != Whole || string(b) != "{}" {
		t.Errorf("beside identity: %d, %q", reading, b)
	}
	twice := answer("gzip", zipped)
	twice.Header.Add("Content-Encoding", "gzip")
	if _, reading := ReadBody(twice, 100); reading != Foreign {
		t.Errorf("in two lines: %d", reading)
	}
	if _, reading := ReadBody(answer("compress", bytes.Repeat([]byte("x"), 101)), 100); reading != TooLarge {
		t.Errorf("too long, and foreign: %d", reading)
	}
	if err := Decode(answer("compress", nil)); err != ErrForeign {
		t.Errorf("a stream: %v", err)
	}
}

// An event is seen when its bytes are there, not when more have come.
func TestEventsInEncodings(t *testing.T) {
	events := []string{"data: one\n\n", "data: two, which is longer\n\n", "data: three\n\n"}
	for _, coding := range codings {
		r, w := io.Pipe()
		resp := answer(coding, nil)
		resp.Body = r
		if err := Decode(resp); err != nil {
			t.Fatal(err)
		}
		sent := encodeParts(t, coding, events...)
		for i, event := range events {
			go func() { _, _ = w.Write(sent[i]) }()
			b := make([]byte, len(event))
			if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != event {
				t.Fatalf("%s, event %d: %q, %v", coding, i, b, err)
			}
		}
		go func() {
			_, _ = w.Write(sent[len(events)])
			_ = w.Close()
		}()
		if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil {
			t.Errorf("%s: at the end %q, %v", coding, rest, err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Errorf("%s: %v", coding, err)
		}
	}
}
