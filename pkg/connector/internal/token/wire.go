package token

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"

	"github.com/agentrun/executor/pkg/connector/internal/httpwire"
)

// answerMax bounds what a token endpoint may answer.
const answerMax = 64 << 10

var errUnreadable = errors.New("token: the answer is too long, or cannot be read")

// wire is the way that all HTTP takes here, for the library.
type wire struct{ pool *httpwire.Pool }

// RoundTrip implements http.RoundTripper.
func (w wire) RoundTrip(req *http.Request) (*http.Response, error) {
	defer req.Body.Close()
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	out := &httpwire.Request{Method: req.Method, URL: req.URL, Body: body, Leave: func() bool { return req.Context().Err() == nil }}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "agentrun")
	for _, name := range slices.Sorted(maps.Keys(req.Header)) {
		out.Header = httpwire.Line(out.Header, name, req.Header.Get(name))
	}
	resp, err := w.pool.Send(req.Context(), out)
	if err != nil {
		return nil, err
	}
	b, reading := httpwire.ReadBody(resp, answerMax)
	if reading != httpwire.Whole {
		return nil, errUnreadable
	}
	resp.Request, resp.Body = req, io.NopCloser(bytes.NewReader(b))
	return resp, nil
}
