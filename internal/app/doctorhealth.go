package app

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// healthFix is the remedy for a server that cannot store. nats-server stays so after there is room, until it is started anew.
const healthFix = "make room on the server's disk, then start the server anew: until then it stores nothing; an executor with --embedded-nats does that by itself"

// health asks the server how it is: by its monitoring, or as a user of its system account. To anybody else a server that
// cannot store looks like one that can.
func (d *doctor) health(ctx context.Context, monitor string) {
	if monitor == "" {
		d.systemHealth(ctx)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(monitor, "/")+"/healthz", nil)
	var resp *http.Response
	if err == nil {
		resp, err = http.DefaultClient.Do(req)
	}
	var h serverHealth
	if err == nil {
		err = json.NewDecoder(resp.Body).Decode(&h)
		_ = resp.Body.Close()
	}
	if err != nil || h.Status == "" {
		d.find("health", Doubtful, "correct --monitor", "%s does not answer as a NATS server's monitoring does", monitor)
		return
	}
	d.sayHealth(h)
}

func (d *doctor) sayHealth(h serverHealth) {
	switch {
	case h.Status == "ok":
		d.find("health", Well, "", "the server says that it is well")
	case strings.Contains(h.Error, "write error"):
		d.find("health", Ill, healthFix, "%s", h.Error)
	default:
		d.find("health", Ill, "see the server's log; "+healthFix, "%s: %s", h.Status, h.Error)
	}
}

// systemHealth asks all servers over a connection of its own: who may not ask learns it by an error that says nothing
// about what an executor may do.
func (d *doctor) systemHealth(ctx context.Context) {
	const fix = "name the server's monitoring (--monitor http://nats:8222), or look at its /healthz: after a full disk a server stores nothing until it is started anew"
	nc, err := nats.Connect(d.NATS, append(options(d.Connection), nats.Name("executor doctor"), nats.Timeout(dialTimeout),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	if err != nil {
		return // said already
	}
	defer nc.Close()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err == nil {
		err = nc.PublishRequest("$SYS.REQ.SERVER.PING.HEALTHZ", sub.Subject, nil)
	}
	worst, heard := serverHealth{Status: "ok"}, false
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for err == nil {
		var m *nats.Msg
		if m, err = sub.NextMsgWithContext(ctx); err != nil {
			break
		}
		var reply struct {
			Data serverHealth `json:"data"`
		}
		if json.Unmarshal(m.Data, &reply) != nil || reply.Data.Status == "" {
			break // nobody answers to this user
		}
		if heard = true; reply.Data.Status != "ok" {
			worst = reply.Data
		}
	}
	if !heard {
		d.find("health", Doubtful, fix, "not visible to this user")
		return
	}
	d.sayHealth(worst)
}
