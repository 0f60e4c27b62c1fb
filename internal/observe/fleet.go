package observe

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Queue is what is known of one queue of jobs.
type Queue struct {
	Name    string
	Waiting int64 // jobs, those in an executor's hands included
	Pulled  bool  // an executor takes them
}

// Queues shows how many jobs wait in which queue, and in which of them nobody takes them; what it is not given is not shown
// any more. unnamed counts jobs of queues that are not named.
func (o *Observer) Queues(queues []Queue, unnamed int64) {
	waiting, unpulled := map[string]float64{}, map[string]float64{}
	for _, q := range queues {
		label := o.queueLabel(q)
		waiting[label] += float64(q.Waiting)
		if !q.Pulled && q.Waiting > 0 {
			unpulled[label] += float64(q.Waiting)
		}
	}
	if unnamed > 0 {
		waiting[other] += float64(unnamed)
		unpulled[other] += float64(unnamed)
	}
	o.waiting.replace(waiting)
	o.unpulled.replace(unpulled)
}

// Config shows which config this process works by.
func (o *Observer) Config(digest string) { o.config.replace(map[string]float64{digest: 1}) }

// Configs shows how many different configs the executors of each queue have.
func (o *Observer) Configs(byQueue map[string]int) {
	values := map[string]float64{}
	for queue, n := range byQueue {
		label := o.queues.label(queue)
		values[label] = max(values[label], float64(n))
	}
	o.configs.replace(values)
}

// PassedOn counts that a run was given back for another executor, because that one has the tool and this one does not.
func (o *Observer) PassedOn(tool string) { o.passedOn.WithLabelValues(o.tools.label(tool)).Inc() }

// queueLabel keeps names that only publishers know from taking the places of those that executors have.
func (o *Observer) queueLabel(q Queue) string {
	if q.Pulled || o.queues.known(q.Name) {
		return o.queues.label(q.Name)
	}
	return o.strays.label(q.Name)
}

// replaced is a gauge with one label whose values are replaced all at once: what is gone is gone, and no scrape sees it half.
type replaced struct {
	desc *prometheus.Desc

	mu     sync.Mutex
	values map[string]float64
}

func newReplaced(name, help, label string) *replaced {
	return &replaced{desc: prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, []string{label}, nil)}
}

func (r *replaced) replace(values map[string]float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values = values
}

func (r *replaced) Describe(ch chan<- *prometheus.Desc) { ch <- r.desc }

func (r *replaced) Collect(ch chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for label, v := range r.values {
		ch <- prometheus.MustNewConstMetric(r.desc, prometheus.GaugeValue, v, label)
	}
}
