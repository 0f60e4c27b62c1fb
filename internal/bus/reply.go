package bus

import (
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
)

// Meta is what the server says about a delivery in its reply subject.
type Meta struct {
	Delivered, Stream, Consumer, Pending uint64
	At                                   time.Time
}

// ParseReply reads $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<ns>.<pending>, and the form
// with a domain and an account hash after $JS.ACK (and possibly a last random token).
func ParseReply(reply string) (m Meta, ok bool) {
	rest, ok := strings.CutPrefix(reply, "$JS.ACK.")
	if !ok {
		return m, false
	}
	skip := 2
	if strings.Count(rest, ".") >= 8 {
		skip = 4
	}
	for range skip {
		if _, rest, ok = strings.Cut(rest, "."); !ok {
			return m, false
		}
	}
	var values [5]uint64
	for i := range values {
		var token string
		token, rest, _ = strings.Cut(rest, ".")
		v, err := strconv.ParseUint(token, 10, 64)
		if err != nil {
			return m, false
		}
		values[i] = v
	}
	return Meta{
		Delivered: values[0], Stream: values[1], Consumer: values[2],
		At: time.Unix(0, int64(values[3])).UTC(), Pending: values[4],
	}, true
}

// MessageOf is a job or a wake in the run's words.
func MessageOf(queue string, seq uint64, at time.Time, h nats.Header, data []byte) engine.Message {
	return engine.Message{Seq: seq, Time: envelope.TimeOf(at), Queue: queue, Trace: h.Get(headerTraceparent), Data: data}
}
