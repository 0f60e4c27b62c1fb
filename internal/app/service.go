package app

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/invopop/jsonschema"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/internal/topology"
	"github.com/agentrun/executor/pkg/envelope"
)

// The micro service of the operator calls (contract §9).
const (
	serviceName    = "agentrun-operator"
	serviceVersion = "1.0.0" // of the calls' contract
	serviceAbout   = "Drain dead letters, look at runs, cancel them, report what became of a write."
	callsAtOnce    = 256
)

// service offers the operator calls on a connection.
type service struct {
	nc    *nats.Conn
	micro micro.Service
	slots chan struct{} // one for each call that is being answered
	ended chan struct{} // closed: no further call is taken up
	stats map[string]*callStats
}

// callStats is what the service's own statistics cannot know, because a call is answered beside its subscription.
type callStats struct {
	answered, refused, microseconds atomic.Int64
}

// serveOperator offers the calls until stop is called, which waits for those that are being answered.
func serveOperator(ctx context.Context, nc *nats.Conn, o *operator.Operator, id string) (stop func(), err error) {
	s := &service{nc: nc, slots: make(chan struct{}, callsAtOnce), ended: make(chan struct{}), stats: map[string]*callStats{}}
	calls := operator.Calls()
	for _, c := range calls {
		s.stats[endpointName(c)] = new(callStats)
	}
	s.micro, err = micro.AddService(nc, micro.Config{
		Name: serviceName, Version: serviceVersion, Description: serviceAbout, Metadata: map[string]string{"reconciler": id},
		StatsHandler: func(e *micro.Endpoint) any {
			c := s.stats[e.Name]
			return map[string]int64{"answered": c.answered.Load(), "refused": c.refused.Load(), "microseconds": c.microseconds.Load()}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("offering the operator calls: %w", err)
	}
	for _, c := range calls {
		metadata, err := schemas(c)
		if err == nil {
			err = s.micro.AddEndpoint(endpointName(c), s.handler(ctx, o, c),
				micro.WithEndpointSubject(topology.OpSubject(c.Name(), "*")), micro.WithEndpointMetadata(metadata))
		}
		if err != nil {
			_ = s.micro.Stop()
			return nil, fmt.Errorf("offering %s: %w", c.Name(), err)
		}
	}
	// Whoever reads that the process is ready may call at once. Without a connection this fails, and a new one brings the
	// subscriptions by itself.
	_ = nc.FlushTimeout(time.Second)
	return func() {
		_ = s.micro.Stop()
		s.end()
	}, nil
}

func endpointName(c *operator.Call) string { return c.Noun + "-" + c.Verb }

// handler answers each request beside the subscription, whose calls would wait for one another otherwise.
func (s *service) handler(ctx context.Context, o *operator.Operator, c *operator.Call) micro.Handler {
	stats := s.stats[endpointName(c)]
	return micro.HandlerFunc(func(r micro.Request) {
		subject, reply, data := r.Subject(), r.Reply(), r.Data()
		s.take(func() { s.answer(ctx, o, c, stats, subject, reply, data) })
	})
}

// take answers a call in a goroutine of its own, when there is room. A subscription that was stopped may still hand over
// what had come: such a call is not taken up, its caller asks again and another reconciler may answer.
func (s *service) take(answer func()) {
	select {
	case <-s.ended:
		return
	default:
	}
	select {
	case s.slots <- struct{}{}:
		go func() {
			defer func() { <-s.slots }()
			answer()
		}()
	case <-s.ended:
	}
}

// end takes up no further call and waits for those that are being answered.
func (s *service) end() {
	close(s.ended)
	for range cap(s.slots) {
		s.slots <- struct{}{} // whoever has a slot is being answered; nobody gets one any more
	}
}

func (s *service) answer(ctx context.Context, o *operator.Operator, c *operator.Call, stats *callStats, subject, inbox string, data []byte) {
	began := time.Now()
	tenant := subject[strings.LastIndexByte(subject, '.')+1:]
	reply, refused := o.Handle(ctx, c, tenant, data)
	stats.answered.Add(1)
	stats.microseconds.Add(time.Since(began).Microseconds())
	msg := &nats.Msg{Subject: inbox, Data: reply}
	if refused != nil {
		stats.refused.Add(1)
		// The server splits headers at line ends, and a message may quote what the caller sent.
		text := strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return ' '
			}
			return r
		}, refused.Message)
		msg.Header = nats.Header{micro.ErrorHeader: {text}, micro.ErrorCodeHeader: {operator.Status(refused.Code)}}
	}
	if inbox != "" {
		_ = s.nc.PublishMsg(msg) // without a connection there is nobody to answer; the same call may be made again
	}
}

// schemas is an endpoint's metadata: what it does, and the JSON Schemas of its request, its reply and a refusal.
func schemas(c *operator.Call) (map[string]string, error) {
	out := map[string]string{"description": c.About}
	for name, value := range map[string]any{"request_schema": c.Request(), "reply_schema": c.Reply, "error_schema": operator.RefusalShape{}} {
		r := jsonschema.Reflector{Anonymous: true, DoNotReference: true, AllowAdditionalProperties: true, ExpandedStruct: true, Mapper: schemaOf}
		data, err := json.Marshal(r.Reflect(value))
		if err != nil {
			return nil, err
		}
		out[name] = string(data)
	}
	return out, nil
}

// schemaOf gives the schema of types whose JSON form is not what reflection sees; nil leaves a type to reflection.
func schemaOf(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[envelope.Time]():
		return &jsonschema.Schema{Type: "string", Format: "date-time"}
	case reflect.TypeFor[json.RawMessage]():
		return &jsonschema.Schema{Description: "any JSON value"}
	}
	return nil
}
