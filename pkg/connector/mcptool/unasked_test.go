package mcptool_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// chatty is an MCP server on bare connections: it answers byte by byte, and says more than it was asked.
type chatty struct {
	listener net.Listener
	wg       sync.WaitGroup
	said     chan struct{} // a call's every byte is on its way

	mu    sync.Mutex
	say   func(answer string) []string // what it writes to a call, write by write
	note  string                       // what it writes to a notification
	open  map[net.Conn]int             // calls on it
	calls int
}

func newChatty(t *testing.T) *chatty {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &chatty{listener: l, said: make(chan struct{}, 1), open: make(map[net.Conn]int), note: "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open[c] = 0
			s.mu.Unlock()
			s.wg.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		s.mu.Lock()
		for c := range s.open {
			_ = c.Close()
		}
		s.mu.Unlock()
		s.wg.Wait()
	})
	return s
}

func ok(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func (s *chatty) serve(c net.Conn) {
	in := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		var m message
		if json.NewDecoder(r.Body).Decode(&m) != nil {
			return
		}
		s.mu.Lock()
		out := []string{s.note}
		switch result := func(r string) string { return ok(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, r)) }; {
		case m.Method == "initialize":
			out = []string{result(`{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}`)}
		case m.Method == "tools/list":
			out = []string{result(`{"tools":[]}`)}
		case m.Method == "tools/call":
			s.open[c]++
			s.calls++
			out = s.say(result(fmt.Sprintf(`{"content":[],"structuredContent":{"call":%d}}`, s.calls)))
		case len(m.ID) > 0:
			out = []string{ok(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, m.ID))}
		}
		s.mu.Unlock()
		for _, b := range out {
			if _, err := io.WriteString(c, b); err != nil {
				break
			}
		}
		if m.Method == "tools/call" {
			s.said <- struct{}{}
		}
	}
}

// What a server says unasked is nobody's: no log has it, no call takes it for its answer, and the connection on which it came,
// or may still come, is not used again.
func TestUnaskedBytes(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t-of-the-tool"
	stray := ok(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + secret + `"}]}}`)
	with := func(answer, line string) string { return strings.Replace(answer, "\r\n", "\r\n"+line+"\r\n", 1) }
	for name, c := range map[string]struct {
		say  func(answer string) []string
		note string
		uses int // most calls on one connection
	}{
		"nothing":                    {say: func(a string) []string { return []string{a} }, uses: 3},
		"in a segment of its own":    {say: func(a string) []string { return []string{a, secret} }, uses: 1},
		"in the answer's segment":    {say: func(a string) []string { return []string{a + secret} }, uses: 1},
		"an answer in its segment":   {say: func(a string) []string { return []string{a + stray} }, uses: 1},
		"an answer in another":       {say: func(a string) []string { return []string{a, stray} }, uses: 1},
		"a line in the last segment": {say: func(a string) []string { return []string{a[:len(a)-1], a[len(a)-1:] + "\r\n" + secret} }, uses: 1},
		"after a chunked answer": {say: func(a string) []string {
			head, body, _ := strings.Cut(a, "\r\n\r\n")
			head = head[:strings.Index(head, "\r\nContent-Length")] + "\r\nTransfer-Encoding: chunked"
			return []string{head + "\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body) + stray}
		}, uses: 1},
		"after an event": {say: func(a string) []string {
			_, body, _ := strings.Cut(a, "\r\n\r\n")
			event := "data: " + body + "\n\n"
			return []string{fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s", len(event), event) + stray}
		}, uses: 1},
		"as the body of a 103": {say: func(a string) []string {
			return []string{"HTTP/1.1 103 Early Hints\r\nContent-Length: " + fmt.Sprint(len(secret)) + "\r\n\r\n" + a, secret}
		}, uses: 1},
		"as the body of a 204": {say: func(string) []string {
			return []string{"HTTP/1.1 204 No Content\r\nContent-Length: " + fmt.Sprint(len(stray)) + "\r\n\r\n" + stray}
		}, uses: 1},
		"as the body of a 304": {say: func(string) []string {
			return []string{"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n" + stray}
		}, uses: 1},
		"as the body of a 304, later": {say: func(string) []string {
			return []string{"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n"}
		}, uses: 1},
		"to a notification": {
			say:  func(a string) []string { return []string{a} },
			note: "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n" + stray, uses: 3,
		},
		"as a failure's second body": {say: func(a string) []string {
			return []string{with(strings.Replace(a, "200 OK", "500 Oops", 1), "X: y") + stray}
		}, uses: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var printed bytes.Buffer
			before := log.Writer()
			log.SetOutput(&printed)
			defer log.SetOutput(before)
			s := newChatty(t)
			s.say = c.say
			if c.note != "" {
				s.note = c.note
			}
			kind := mcptool.New(map[string]connector.MCPServerSpec{"billing": {URL: "http://" + s.listener.Addr().String()}})
			tool := compile(t, &peer{kind: kind}, envelope.Write, nil)
			for i := range 3 {
				got := tool.Caller.Call(t.Context(), call(`{}`))
				if got.NotSent {
					t.Fatalf("call %d was not sent", i+1)
				}
				<-s.said
				if want := fmt.Sprintf(`{"call":%d}`, i+1); got.OK && string(got.Result) != want {
					t.Errorf("call %d took %s", i+1, got.Result)
				}
			}
			kind.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, n := range s.open {
				if n > c.uses {
					t.Errorf("%d calls on one connection", n)
				}
			}
			if s.calls != 3 {
				t.Errorf("%d calls arrived", s.calls)
			}
			if strings.Contains(printed.String(), secret) || printed.Len() > 0 {
				t.Errorf("printed: %s", &printed)
			}
		})
	}
}
