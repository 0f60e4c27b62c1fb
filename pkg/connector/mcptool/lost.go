package mcptool

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"regexp"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/agentrun/executor/pkg/connector"
)

const methodPing = "ping"

// wordsMax is how many bytes of a refusal are looked at for what it says of the session.
const wordsMax = 4 << 10

// unknownSession is how servers and gateways say that they do not know a session. It is read from the first word on: a
// tool's own error that speaks of some session in passing is not meant.
var unknownSession = regexp.MustCompile(`(?i)^(?:(?:error|bad request|not found|unauthorized|invalid request|request rejected)[:,. -]+)*["']?(?:` +
	// Session not found: …; Session 5eee… has expired; Mcp-Session-Id header is required
	`(?:(?:the|this|your|provided) )*(?:mcp[- ])?session(?:[-_ ]?id)?(?: header)?(?: with id)?(?:[: ]+\S*\d\S*)?:? ` +
	`(?:is |was |has |does |do |could |can |been )*` +
	`(?:not (?:be )?(?:found|exist|valid|known|recognized|initialized|active)|no longer (?:exists|valid|known|active)|` +
	`unknown|unrecognized|invalid|expired|required|missing)` +
	// No valid session ID provided; Unknown Mcp-Session-Id header; Invalid or expired session ID
	`|no session(?:[-_ ]?id)? (?:found|provided|exists|with)` +
	`|(?:no valid|no such|no active|invalid|unknown|unrecognized|expired|stale|missing)` +
	`(?: or (?:invalid|unknown|expired|missing))* (?:mcp[- ])?session(?:[-_ ]?id)?` +
	`|session_?(?:not_?found|expired)` +
	`|server (?:is )?not initialized` +
	`)(?:[^\w]|$)`)

// refusesSession reports whether an answer says in so many words that the session is unknown.
func (d *dispatch) refusesSession() bool {
	text := d.words
	if d.fault != nil {
		text = d.fault.Message
	}
	return unknownSession.MatchString(text)
}

// lost reports whether the server has lost the session of a request, by its answer to it, and what that says of the request.
//
// The specification has 404 for that; many answer 400, with an error of JSON-RPC or without, and some 200 with one. None of
// them proves it: a gateway may refuse the answer to a call that its server has carried out, and a tool may have sessions of
// its own. So a ping, which needs nothing but the session, is asked in it: only if that is refused for the session as well was
// the request not looked at. A server that refuses the ping in the same way without a word about the session is not asked in it
// again, but what it said of the request stands.
func (s *session) lost(ctx context.Context, d *dispatch) (gone bool, of verdict) {
	refused := d.status >= 400 && d.status < 500
	said := d.status == http.StatusNotFound || refused && d.refusesSession()
	switch {
	case !d.session || (d.status == 0 && d.fault == nil):
		return false, asAnswered
	case said, d.refusesSession(), d.status == http.StatusBadRequest, d.status == 0 && doubtful(d.fault.Code):
	default:
		return false, asAnswered
	}
	ping := s.probe(ctx)
	switch {
	case ping.status == http.StatusNotFound, ping.refusesSession():
		if refused || d.refusesSession() || invalid(d.fault) {
			return true, unprocessed
		}
		return true, asAnswered
	case ping.status == d.status && code(ping.fault) == code(d.fault) && (ping.status != 0 || ping.fault != nil):
		if refused || invalid(d.fault) {
			return true, unprocessed
		}
		return true, asAnswered
	case said:
		// The session lives, or nobody can say: then it is not used again.
		return ping.failure != connector.Answered || ping.status != 0, unknown
	}
	return false, asAnswered
}

// verdict is what becomes of a request whose answer may be about its session.
type verdict int

const (
	asAnswered  verdict = iota // the answer is one to the request
	unprocessed                // the session is gone, and nobody has looked at the request
	unknown                    // the answer speaks of the session, which is not gone: it says nothing of the request
)

// doubtful are codes under which servers report a session that they do not know: the one for invalid requests, and those
// that the specification leaves to servers.
func doubtful(code int64) bool {
	return code == jsonrpc.CodeInvalidRequest || (code <= -32000 && code >= -32099)
}

// invalid is the error of a request that was not understood, so that nothing was done.
func invalid(e *jsonrpc.Error) bool { return e != nil && e.Code == jsonrpc.CodeInvalidRequest }

func code(e *jsonrpc.Error) int64 {
	if e == nil {
		return 0
	}
	return e.Code
}

// probe is a ping and what came of it.
func (s *session) probe(ctx context.Context) *dispatch {
	ctx, cancel := context.WithTimeout(ctx, pingPatience)
	defer cancel()
	d := newDispatch(methodPing, wordsMax, nil)
	go func() {
		_ = s.Ping(withDispatch(ctx, d), nil)
		d.fail(silence(ctx))
	}()
	select {
	case <-d.end:
	case <-s.wire.gone:
		d.fail(silence(ctx))
	case <-ctx.Done():
		d.fail(silence(ctx))
	}
	return d
}

// readRefusal takes what the body of a refusal says: an error of JSON-RPC, which may have no id and may stand in an event,
// or words.
func readRefusal(body []byte) (fault *jsonrpc.Error, words string) {
	if event := bytes.TrimLeft(body, "\ufeff\r\n \t"); bytes.HasPrefix(event, []byte("event:")) || bytes.HasPrefix(event, []byte("data:")) ||
		bytes.HasPrefix(event, []byte("id:")) {
		body = firstData(event)
	}
	if fault, _ = readFault(body); fault != nil {
		return fault, ""
	}
	if len(body) > wordsMax {
		return nil, ""
	}
	var members map[string]any
	if json.Unmarshal(body, &members) != nil {
		return nil, string(bytes.TrimSpace(body))
	}
	for _, name := range []string{"error", "message", "detail", "error_description"} {
		text, _ := members[name].(string)
		if inner, is := members[name].(map[string]any); is {
			text, _ = inner["message"].(string)
		}
		if unknownSession.MatchString(text) {
			return nil, text
		}
	}
	return nil, ""
}

// readFault reads an error of JSON-RPC, with an id or without: who does not know the session may not have read as far.
func readFault(body []byte) (fault *jsonrpc.Error, nobodys bool) {
	var m struct {
		Version string         `json:"jsonrpc"`
		ID      any            `json:"id"`
		Method  *string        `json:"method"`
		Error   *jsonrpc.Error `json:"error"`
	}
	if json.Unmarshal(body, &m) != nil || m.Version != "2.0" || m.Method != nil {
		return nil, false
	}
	return m.Error, m.ID == nil
}

// firstData is the data of the first event of an event stream.
func firstData(events []byte) []byte {
	var data []byte
	for line := range bytes.Lines(events) {
		line = bytes.TrimRight(line, "\r\n")
		if rest, is := bytes.CutPrefix(line, []byte("data:")); is {
			data = append(append(data, bytes.TrimPrefix(rest, []byte(" "))...), '\n')
		} else if len(line) == 0 && len(data) > 0 {
			break
		}
	}
	return data
}
