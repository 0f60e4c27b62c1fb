package app

import (
	"time"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/internal/reconcile"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/worker"
	"github.com/agentrun/executor/pkg/connector"
)

// The benchmark puts an executor together by itself, to leave out what it does not measure; the simulator holds its fakes
// against the real parts. These are the joints.

// NewRecords are the records on a connection.
func NewRecords(conn *bus.Conn, retention time.Duration) *record.Records {
	return &record.Records{Store: store{conn}, Clock: conn.Clock(), Retention: retention}
}

// NewTools are the worker's tools.
func NewTools(r *connector.Registry) worker.Tools {
	return newLive(&Toolbox{File: &config.File{}, Registry: r})
}

// NewDelivery says in the worker's words what the bus delivered.
func NewDelivery(d bus.Delivery) worker.Delivery { return delivery(d) }

// NewStore tells the worker which store of records the connection has.
func NewStore(conn *bus.Conn) worker.Store { return streamStore{conn} }

// NewWatch follows the streams of a connection, for a reconciler.
func NewWatch(conn *bus.Conn, index *operator.Index) reconcile.Watch { return watches{conn, index} }

// NewFleet is the record of which reconciler is active.
func NewFleet(conn *bus.Conn) reconcile.Fleet { return fleet{conn} }

// streamStore believes that the store keeps what it is given.
type streamStore struct{ conn *bus.Conn }

// Current is known only while the streams have been looked at since the last reconnect.
func (s streamStore) Current() (token string, ok bool) {
	st := s.conn.Status()
	return st.Created.String(), !st.Observed.IsZero()
}

func (streamStore) Vanished(string) {}
func (streamStore) Sent()           {}
