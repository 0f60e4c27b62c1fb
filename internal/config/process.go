package config

import (
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/agentrun/executor/pkg/connector"
)

// processKeys are what a program that is started can be told, beside what it is.
var processKeys = []string{"cwd", "user", "umask", "limits"}

var (
	userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*\$?(:[A-Za-z0-9_][A-Za-z0-9_.-]*\$?)?$`)
	octal    = regexp.MustCompile(`^0?[0-7]{3}$`)
)

// process reads what a program finds when it begins. Whether this machine has the user and the directory is not asked: the
// file is read where the program never runs, too.
func (o *object) process() connector.ProcessSpec {
	s := connector.ProcessSpec{Cwd: o.text("cwd", ""), User: o.textOrNumber("user"), Umask: o.textOrNumber("umask")}
	if p := o.n.pair("cwd"); p != nil && s.Cwd != "" && (!strings.HasPrefix(s.Cwd, "/") || strings.ContainsRune(s.Cwd, 0)) {
		o.d.fail(p.value, "%s must be an absolute path%s", o.sub("cwd"), fromEnvironment(p.value))
	}
	if p := o.n.pair("user"); p != nil && s.User != "" && !userName.MatchString(s.User) {
		o.d.fail(p.value, "%s must be a user, or a user and a group as user:group, each a name or a number%s", o.sub("user"), fromEnvironment(p.value))
	}
	if p := o.n.pair("umask"); p != nil && s.Umask != "" && !octal.MatchString(s.Umask) {
		o.d.fail(p.value, "%s must be three octal digits, such as 027%s", o.sub("umask"), fromEnvironment(p.value))
	}
	s.Limits = o.limits()
	return s
}

// textOrNumber reads text that may be written as a plain number.
func (o *object) textOrNumber(key string) string {
	if p := o.n.pair(key); p != nil && p.value.kind == scalarNode && p.value.style == plainStyle && plainInteger.MatchString(p.value.text) {
		o.get(key)
		return p.value.text
	}
	return o.text(key, "")
}

// limits reads limits by their names in getrlimit(2). cpu is a duration, as everywhere in the file.
func (o *object) limits() map[string]uint64 {
	p := o.get("limits")
	if p == nil {
		return nil
	}
	l := o.d.object(p, o.sub("limits"), "as", "core", "cpu", "data", "fsize", "memlock", "nofile", "nproc", "stack")
	if l == nil {
		return nil
	}
	out := map[string]uint64{}
	for _, p := range l.n.pairs {
		if p.key == "cpu" {
			v := l.duration(p.key, 0, time.Second, durationMost)
			if v%time.Second != 0 {
				o.d.fail(p.value, "%s must be whole seconds", l.sub(p.key))
			}
			out[p.key] = uint64(v / time.Second)
			continue
		}
		least := int64(1)
		if p.key == "core" || p.key == "fsize" || p.key == "memlock" {
			least = 0
		}
		out[p.key] = uint64(l.whole(p.key, least, least, math.MaxInt64))
	}
	if len(out) == 0 && !l.n.partial {
		o.d.fail(p.value, "%s names none: remove the key, or set one of as, core, cpu, data, fsize, memlock, nofile, nproc and stack", o.sub("limits"))
	}
	return out
}

func (o *object) argv(key string) []string {
	first := true
	return o.texts(key, func(n *node, path, s string) {
		switch {
		case first && s == "":
			o.d.fail(n, "%s must name a program", path)
		case strings.ContainsRune(s, 0):
			o.d.fail(n, "%s holds a NUL byte%s: remove it", path, fromEnvironment(n))
		}
		first = false
	})
}

func (o *object) environment(key string) map[string]string {
	return o.textMap(key, "variable names to text", func(p *pair, path, s string) {
		switch {
		case !variableName.MatchString(p.key):
			o.d.failAt(p.place, "%s is no name for a variable: use letters, digits and _, the first no digit", path)
		case strings.HasPrefix(p.key, "AGENTRUN_"):
			o.d.failAt(p.place, "%s is set by the runtime: use another name", path)
		case strings.ContainsRune(s, 0):
			o.d.fail(p.value, "%s holds a NUL byte%s: remove it", path, fromEnvironment(p.value))
		}
	})
}
