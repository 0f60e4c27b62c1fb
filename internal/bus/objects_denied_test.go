package bus_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/internal/port"
	"github.com/agentrun/executor/internal/streams"
	"github.com/agentrun/executor/internal/streams/streamstest"
)

// A user who may not store objects learns it by the server's refusal, and not by waiting: no request of his is answered.
func TestObjectsMayBeDenied(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "p"},
			{Username: "some", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$O.>", "$JS.API.STREAM.*.OBJ_AGENTRUN_OBJECTS"}}}},
		}
	})
	at := func(user string) string {
		return strings.Replace(s.URL, "nats://", fmt.Sprintf("nats://%s:p@", user), 1)
	}
	streamstest.SetUp(t, at("all"), streams.Config{})
	c := streamstest.SetUp(t, at("some"), streams.Config{})
	ctx := streamstest.Deadline(t)
	if err := c.PutObject(ctx, "t/r/s/d", make([]byte, 300<<10)); !errors.Is(err, bus.ErrDenied) || !errors.Is(err, port.ErrRefused) || !strings.Contains(err.Error(), port.ObjectsBucket) {
		t.Errorf("%v", err)
	}
	if ctx.Err() != nil {
		t.Error("it waited for its whole time")
	}
}

// An object's parts fit the server's messages.
func TestObjectsFitTheServersMessages(t *testing.T) {
	t.Parallel()
	c := streamstest.SetUp(t, bustest.Start(t, bustest.MaxPayload(64<<10)).URL, streams.Config{})
	if err := c.PutObject(streamstest.Deadline(t), "t/r/s/d", make([]byte, 300<<10)); err != nil {
		t.Fatal(err)
	}
	if data, err := c.GetObject(streamstest.Deadline(t), "t/r/s/d"); err != nil || len(data) != 300<<10 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}
