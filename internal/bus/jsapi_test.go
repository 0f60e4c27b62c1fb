package bus

import (
	"errors"
	"testing"
)

func TestAPI(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		api  API
		want string // "": refused
	}{
		{API{}, "$JS.API.INFO"},
		{API{Domain: "hub"}, "$JS.hub.API.INFO"},
		{API{Prefix: "agentrun.hub.API"}, "agentrun.hub.API.INFO"},
		{API{Domain: "a.b"}, ""},
		{API{Domain: "a b"}, ""},
		{API{Domain: "*"}, ""},
		{API{Prefix: "a..b"}, ""},
		{API{Prefix: "a.>"}, ""},
		{API{Prefix: "a."}, ""},
		{API{Domain: "hub", Prefix: "a"}, ""},
	} {
		if err := x.api.Check(); (err == nil) != (x.want != "") {
			t.Errorf("%+v: %v", x.api, err)
		} else if err == nil && x.api.Subject("INFO") != x.want {
			t.Errorf("%+v: %s, wanted %s", x.api, x.api.Subject("INFO"), x.want)
		}
	}
	if _, err := Connect(Options{URL: "nats://127.0.0.1:1", API: API{Prefix: "a.>"}}); !errors.Is(err, ErrPrefix) {
		t.Errorf("a connection that asks nobody: %v", err)
	}
}
