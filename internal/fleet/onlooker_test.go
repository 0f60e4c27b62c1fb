package fleet

import (
	"encoding/json"
	"testing"
	"time"
)

// Nothing is said of executors before they had the time to answer, nor where the question does not come back: who may not
// listen would take every queue for one that nobody pulls.
func TestAnOnlookerKnowsWhenItKnows(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	o := NewOnlooker(func([]byte) error { return nil })
	o.now = func() time.Time { return now }
	told := func(said Offer) {
		t.Helper()
		data, err := json.Marshal(said)
		if err != nil {
			t.Fatal(err)
		}
		o.Told(data)
	}
	want := func(when string, pulled, known bool) {
		t.Helper()
		_, k := o.Hears()
		if p := Pulling(o.Living(), "default") > 0; k != known || known && p != pulled {
			t.Errorf("%s: pulled %t, known %t", when, p, k)
		}
	}
	e := Offer{Name: "e", Queues: []string{"default"}}
	o.Ask()
	told(e)
	told(Offer{Name: "another's question", Asks: true})
	now = now.Add(time.Hour)
	told(e)
	want("its question did not come back", false, false)
	told(Offer{Name: o.asked, Asks: true})
	want("at once", false, false)
	now = now.Add(onlookerPatience)
	want("after executors had their time", true, true)

	now = now.Add(rosterGone - onlookerPatience)
	want("heard lately", true, true)
	now = now.Add(time.Second)
	want("not heard any more", false, true)
	told(e)
	want("heard again", true, true)
	e.Gone = true
	told(e)
	want("it has gone", false, true)
	o.Ask()
	want("on a new connection", false, false)
}
