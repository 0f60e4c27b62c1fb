package config

import (
	"strings"
	"time"

	"github.com/agentrun/executor/pkg/connector"
)

// processKeys are what a program that is started can be told, beside what it is.
var processKeys = []string{"cwd", "user", "umask", "limits"}

// process reads what a program finds when it begins. Whether this machine has the user and the directory is not asked: the
// file is read where the program never runs, too.
func (o *object) process() connector.ProcessSpec {
	return connector.ProcessSpec{Cwd: o.text("cwd", ""), User: o.text("user", ""), Umask: o.text("umask", ""), Limits: o.limits()}
}

// limits reads limits by their names in getrlimit(2). cpu is a duration, as everywhere in the file.
func (o *object) limits() map[string]uint64 {
	l := o.object("limits")
	if l == nil {
		return nil
	}
	out := map[string]uint64{}
	for _, p := range l.n.pairs {
		if p.key != "cpu" {
			out[p.key] = uint64(l.whole(p.key, 0))
			continue
		}
		v := l.duration(p.key, 0, time.Second, durationMost)
		if v%time.Second != 0 {
			o.d.fail(p.value, "%s must be whole seconds", l.sub(p.key))
		}
		out[p.key] = uint64(v / time.Second)
	}
	return out
}

func (o *object) argv(key string) []string {
	out := o.texts(key, nil)
	if len(out) > 0 && out[0] == "" && !o.items(key)[0].broken {
		o.d.fail(o.items(key)[0], "%s[0] must name a program", o.sub(key))
	}
	return out
}

func (o *object) environment(key string) map[string]string {
	return o.textMap(key, func(p *pair, path string) {
		if strings.HasPrefix(p.key, "AGENTRUN_") {
			o.d.failAt(p.place, "%s is set by the runtime: use another name", path)
		}
	})
}
