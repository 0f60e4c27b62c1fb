package app

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/pkg/client"
)

// What the client says and hears in operator calls has the members that the calls have: theirs are read strictly and written
// raw, the client's are for callers, so each side has types of its own.
func TestTheClientSpeaksTheOperatorsMessages(t *testing.T) {
	t.Parallel()
	calls := map[string]*operator.Call{}
	for _, c := range operator.Calls() {
		calls[c.Name()] = c
	}
	for _, x := range []struct {
		call           string
		request, reply any
	}{
		{"deadletters.list", client.ListRequest{}, client.LetterPage{}},
		{"deadletters.replay", client.ReplayRequest{}, client.Episode{}},
		{"deadletters.replay", client.BulkRequest{}, client.BulkReply{}},
		{"deadletters.resolve", client.ResolveRequest{}, client.Episode{}},
		{"deadletters.approve", client.ApproveRequest{}, client.Episode{}},
		{"deadletters.discard", client.DiscardRequest{}, client.Episode{}},
		{"deadletters.assign", client.AssignRequest{}, nil},
		{"runs.list", client.ListRunsRequest{}, client.RunPage{}},
		{"runs.cancel", client.CancelRequest{}, nil},
		{"runs.discard", client.DiscardRunRequest{}, nil},
		{"runs.report", client.ReportRequest{}, nil},
		{"queues.list", nil, client.QueueList{}},
	} {
		c := calls[x.call]
		for _, side := range []struct{ ours, theirs any }{{x.request, c.Request()}, {x.reply, c.Reply}} {
			theirs := membersOf(reflect.TypeOf(side.theirs))
			for _, name := range membersOf(reflect.TypeOf(side.ours)) {
				if !slices.Contains(theirs, name) && !(name == "to" && x.call == "deadletters.replay") { // of AssignMany
					t.Errorf("%s: %T has %s, %T has %s", x.call, side.ours, name, side.theirs, theirs)
				}
			}
		}
	}
	for _, x := range []struct{ ours, theirs any }{{client.Queue{}, operator.Queue{}}, {client.BulkResult{}, operator.Result{}}, {client.Filter{}, operator.Filter{}}} {
		if ours, theirs := membersOf(reflect.TypeOf(x.ours)), membersOf(reflect.TypeOf(x.theirs)); !slices.Equal(ours, theirs) {
			t.Errorf("%T has %s, %T has %s", x.ours, ours, x.theirs, theirs)
		}
	}
}

// membersOf are the JSON names of a struct's fields, in order, those of embedded structs included; none of no struct.
func membersOf(t reflect.Type) (names []string) {
	if t == nil {
		return nil
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}
