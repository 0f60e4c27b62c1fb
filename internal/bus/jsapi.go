package bus

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// API says whose JetStream has the streams: that of the connection's own account and server, that of a domain (which a
// leaf node's clients name to mean the hub's), or another account's, whose API this account imports under a prefix. Every
// request of the API is made from it, and nothing else writes its subjects. At most one is set.
type API struct {
	Domain string // the server's jetstream.domain
	Prefix string // what $JS.API is imported as, for example agentrun.hub.API
}

var (
	apiDomain = regexp.MustCompile(`^[^\s.*>]+$`)
	apiPrefix = regexp.MustCompile(`^[^\s.*>]+(\.[^\s.*>]+)*$`)
)

// Errors of API.Check.
var (
	ErrDomain  = errors.New("is no domain (one token of a subject: no space, '.', '*' and '>')")
	ErrPrefix  = errors.New("is no literal subject (tokens separated by '.', without space, '*' and '>', and no '.' at its end)")
	ErrTwoAPIs = errors.New("a domain and a prefix are both named, but the streams are in one place")
)

// Check returns why the API cannot be meant; nil if it can.
func (a API) Check() error {
	switch {
	case a.Domain != "" && a.Prefix != "":
		return ErrTwoAPIs
	case a.Domain != "" && !apiDomain.MatchString(a.Domain):
		return fmt.Errorf("%q %w", a.Domain, ErrDomain)
	case a.Prefix != "" && !apiPrefix.MatchString(a.Prefix):
		return fmt.Errorf("%q %w", a.Prefix, ErrPrefix)
	}
	return nil
}

// Subject is where a request of the JetStream API goes, for example STREAM.INFO.AGENTRUN_RUNS.
func (a API) Subject(request string) string {
	switch {
	case a.Domain != "":
		return "$JS." + a.Domain + ".API." + request
	case a.Prefix != "":
		return a.Prefix + "." + request
	}
	return "$JS.API." + request
}

// JetStream is the client library's view of it.
func (a API) JetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	switch {
	case a.Domain != "":
		return jetstream.NewWithDomain(nc, a.Domain)
	case a.Prefix != "":
		return jetstream.NewWithAPIPrefix(nc, a.Prefix)
	}
	return jetstream.New(nc)
}

// Unanswered reports whether nobody answers a request of the API, or who does has no JetStream for this account.
func Unanswered(err error) bool {
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) ||
		errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount)
}

// ElsewhereRemedy is what mends an API that is unanswered, in words for whoever runs the process.
const ElsewhereRemedy = "where the streams are in another JetStream domain (a hub behind a leaf node) name it with --js-domain, where another account's API is imported name its prefix with --js-prefix; else enable JetStream in the server and for this account"
