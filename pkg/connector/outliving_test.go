package connector

import (
	"errors"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
)

type outliving struct{ *stub }

func (o outliving) Prepare(Preparation) (Transport, error) { return o, nil }
func (outliving) Outlives() bool                           { return true }

// Where a program may go on after its executor has died, only a window as long as its timeout proves absence.
func TestAWindowCoversWhatMayOutliveTheExecutor(t *testing.T) {
	for _, c := range []struct {
		effect envelope.Effect
		window time.Duration
		has    bool
		kind   Kind
		bad    bool
	}{
		{envelope.Write, 9 * time.Second, true, outliving{&stub{name: KindCommand}}, true},
		{envelope.Write, 10 * time.Second, true, outliving{&stub{name: KindCommand}}, false},
		{envelope.Write, 0, false, outliving{&stub{name: KindCommand}}, false}, // no lookup proves absence there
		{envelope.Write, 9 * time.Second, true, &stub{name: KindCommand}, false},
	} {
		spec := Spec{Name: "tool", Effect: c.effect, Kind: kindSpec(KindCommand), Timeout: 10 * time.Second}
		verify(&spec)
		spec.Verify.ConsistencyWindow, spec.Verify.HasWindow = c.window, c.has
		_, err := Compile(spec, c.kind)
		var fault *SpecError
		if bad := errors.As(err, &fault) && fault.Path[1] == "consistency_window"; bad != c.bad || !bad && err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
