package fieldcases

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
)

// clockVariable is by how much a process's wall clock is off.
const clockVariable = "FIELDCASES_CLOCK_OFF"

// A worker and a reconciler whose clocks are an hour off, in both directions: nothing is sent before its not_before as the
// tool sees it, a live lease is left alone, and a dead one is taken over in time.
func TestCase09ClocksAnHourOff(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	probe := exec.Command(self)
	probe.Env = append(os.Environ(), roleVariable+"=clock", clockVariable+"=1h")
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("this machine does not let a process set its own clock off: %v %s", err, out)
	}
	for _, x := range []struct{ name, executor, reconciler string }{
		{"worker ahead, reconciler behind", "1h", "-1h"},
		{"worker behind, reconciler ahead", "-1h", "1h"},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			const lease = 2 * time.Second
			w := newWorld(t, lease, tool{name: "busy", delay: 700 * time.Millisecond, delayMax: time.Second}, tool{name: "slow", write: true, timeout: time.Minute}, tool{name: "lost", write: true, timeout: time.Minute})
			off := func(role, name, by string) *process {
				p := w.process(role, name, true)
				p.env = append(p.env, clockVariable+"="+by)
				return p.start()
			}
			a := off("executor", "a", x.executor)
			b := off("executor", "b", x.executor)
			r := off("reconciler", "r1", x.reconciler)
			for _, p := range []*process{a, b, r} {
				here := time.Now().UTC().Format("time=2006-01-02T15")
				if strings.Contains(p.log.String(), here) {
					t.Fatalf("its log has this hour, so its clock is not off:\n%s", tail(p.log.String(), 400))
				}
			}
			w.follow()
			w.provider.script(func(c call) plan {
				switch {
				case c.Tool == "busy" && c.Nth == 1:
					p := refuse(429)
					p.RetryAfter = "1"
					return p
				case c.Tool == "busy" && c.Nth == 2:
					return refuse(503)
				case c.Tool == "slow":
					return slow(2*lease + lease/2)
				case c.Tool == "lost" && c.Nth == 1:
					return plan{Hang: true, Commit: true}
				}
				return done()
			})
			w.publish("busy", nil, do("s", "busy"))
			w.publish("slow", nil, do("s", "slow"))
			w.mustEnd("busy", envelope.OK, "")
			calls, outcomes := w.provider.callsOf(ref("busy", "s")), w.outcomes("busy", envelope.StepScope)
			if len(calls) != 3 || len(outcomes) != 3 {
				t.Fatalf("%d calls\n%s", len(calls), w.story())
			}
			for i, o := range outcomes[:2] {
				if calls[i+1].At.Before(o.NotBefore.Time()) {
					t.Errorf("request %d came at %s, not before was %s", i+2, calls[i+1].At, o.NotBefore.Time())
				}
				if late := calls[i+1].At.Sub(o.NotBefore.Time()); late > 30*time.Second {
					t.Errorf("request %d came %s late", i+2, late)
				}
			}
			w.mustEnd("slow", envelope.OK, "")
			if len(w.outcomes("slow", envelope.StepScope)) != 1 || w.provider.lookupsOf("") != 0 || len(w.provider.callsOf(ref("slow", "s"))) != 1 {
				t.Errorf("a live lease was taken over:\n%s", w.story())
			}
			w.publish("lost", nil, do("s", "lost"))
			w.mustCalls(ref("lost", "s"), 1)
			killed := time.Now()
			map[string]*process{"a": a, "b": b}[w.provider.callsOf(ref("lost", "s"))[0].Worker].kill()
			unknown := w.mustStep("lost", "s", envelope.UnknownNow)
			if took := time.Since(killed); took < lease-lease/4 || took > time.Minute {
				t.Errorf("a dead worker's lease of %s was taken over after %s", lease, took)
			}
			if at := unknown.At.Time(); time.Since(at).Abs() > 5*time.Minute {
				t.Errorf("the outcome says that it was made at %s", at)
			}
			w.mustEnd("lost", envelope.OK, "")
			w.balanced()
		})
	}
}
