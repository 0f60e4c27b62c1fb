package mcptool

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/connector"
)

const (
	pagesMax  = 100
	offersMax = 10_000
)

// Offer is a tool as its server describes it.
type Offer struct {
	Name         string
	Title        string
	Description  string
	InputSchema  any // as decoded, numbers as json.Number; nil if there is none
	OutputSchema any

	// What the annotations say; nil where they say nothing.
	ReadOnly    *bool
	Destructive *bool
	Idempotent  *bool
	OpenWorld   *bool

	output *jsonschema.Schema // nil if there is none, or none that can be compiled
}

// Changes reports whether the server says in so many words that the tool is no read: readOnlyHint false, or
// destructiveHint true without readOnlyHint true. Annotations that say nothing say nothing.
func (o *Offer) Changes() bool {
	if o.ReadOnly != nil {
		return !*o.ReadOnly
	}
	return o.Destructive != nil && *o.Destructive
}

// list reads the whole list of a server's tools.
func (s *session) list(ctx context.Context) ([]*Offer, error) {
	var out []*Offer
	params := &mcp.ListToolsParams{}
	for range pagesMax {
		d := newDispatch(methodList, messageMax/8, nil)
		page, err := s.ListTools(withDispatch(ctx, d), params)
		d.fail(0)
		if d.session && d.status == http.StatusNotFound {
			s.retire() // the next call need not be the one that finds out
		}
		raw := d.result
		if raw == nil {
			// Nothing went over the wire: the SDK had it.
			if err != nil {
				return nil, d.listTrouble(err)
			}
			if raw, err = json.Marshal(page); err != nil {
				return nil, err
			}
		}
		offers, next, err := decodeOffers(raw)
		if err != nil {
			return nil, err
		}
		if out = append(out, offers...); len(out) > offersMax {
			return nil, &Trouble{Cause: fmt.Sprintf("it has more than %d tools", offersMax)}
		}
		if next == "" || next == params.Cursor {
			return out, nil
		}
		params = &mcp.ListToolsParams{Cursor: next}
	}
	return nil, &Trouble{Cause: fmt.Sprintf("the list of its tools has more than %d pages", pagesMax)}
}

var errList = &Trouble{Cause: "the list of its tools cannot be read"}

// listTrouble says how tools/list failed, if the server has said it.
func (d *dispatch) listTrouble(err error) error {
	switch {
	case d.fault != nil:
		return &Trouble{Cause: fmt.Sprintf("it refuses tools/list with JSON-RPC error %d", d.fault.Code)}
	case d.status != 0:
		return &Trouble{Cause: fmt.Sprintf("it answers tools/list with status %d", d.status)}
	}
	return err
}

func decodeOffers(raw json.RawMessage) (out []*Offer, next string, err error) {
	if strictjson.CheckJSON(raw, strictjson.Bounds{}) != nil {
		return nil, "", errList
	}
	var page struct {
		Tools []struct {
			Name         string `json:"name"`
			Title        string `json:"title"`
			Description  string `json:"description"`
			InputSchema  any    `json:"inputSchema"`
			OutputSchema any    `json:"outputSchema"`
			Annotations  struct {
				Title       string `json:"title"`
				ReadOnly    *bool  `json:"readOnlyHint"`
				Destructive *bool  `json:"destructiveHint"`
				Idempotent  *bool  `json:"idempotentHint"`
				OpenWorld   *bool  `json:"openWorldHint"`
			} `json:"annotations"`
		} `json:"tools"`
		Next string `json:"nextCursor"`
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if dec.Decode(&page) != nil {
		return nil, "", errList
	}
	for _, t := range page.Tools {
		o := &Offer{
			Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: t.InputSchema, OutputSchema: t.OutputSchema,
			ReadOnly: t.Annotations.ReadOnly, Destructive: t.Annotations.Destructive,
			Idempotent: t.Annotations.Idempotent, OpenWorld: t.Annotations.OpenWorld,
		}
		if o.Title == "" {
			o.Title = t.Annotations.Title
		}
		o.output = compileSchema(o.OutputSchema)
		out = append(out, o)
	}
	return out, page.Next, nil
}

// compileSchema returns nil for a schema that is none: a server's mistake in it is no reason to refuse its results.
func compileSchema(doc any) *jsonschema.Schema {
	if doc == nil {
		return nil
	}
	readable, _ := connector.ReadableSchema(doc)
	s, err := connector.CompileSchema("schema:///output", readable)
	if err != nil {
		return nil
	}
	return s
}

// readOffers reads the list again. A server that has none, or whose list cannot be read, has said nothing about its tools.
func (s *session) readOffers(ctx context.Context) {
	list, err := s.list(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading, s.read = false, time.Now()
	if err != nil {
		return
	}
	s.offers = make(map[string]*Offer, len(list))
	for _, o := range list {
		s.offers[o.Name] = o
	}
}

func (s *session) outdate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = time.Time{}
}

// offer returns what the server has said about a tool, nil if nothing. A list that is old is read again in the background.
func (s *session) offer(name string) *Offer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.reading && !s.retired && time.Since(s.read) > offerAge {
		s.reading = true
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), listTimeout)
			defer cancel()
			s.readOffers(ctx)
		}()
	}
	return s.offers[name]
}
