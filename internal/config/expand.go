package config

import (
	"regexp"
	"sort"
	"strings"
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand sets a scalar's value: it replaces ${NAME} by the variable of the environment, ${file:PATH} by what the file holds, and $${ by ${. It works
// on scalars that have been read, so no value can add a key, end a string or change a type. What it takes in is remembered
// for redaction. A scalar whose value cannot be had is broken.
func (d *decoder) expand(n *node, path string) {
	s := n.text
	if !strings.Contains(s, "${") {
		return
	}
	n.substituted, n.files = nil, nil
	var b strings.Builder
	for s != "" {
		i := strings.Index(s, "${")
		if i < 0 {
			break
		}
		if i > 0 && s[i-1] == '$' {
			b.WriteString(s[:i-1])
			b.WriteString("${")
			s = s[i+2:]
			continue
		}
		b.WriteString(s[:i])
		name, rest, closed := strings.Cut(s[i+2:], "}")
		file, isFile := strings.CutPrefix(name, "file:")
		if !closed || (isFile && file == "") || (!isFile && !variableName.MatchString(name)) {
			d.fail(n, "%s: ${ must be followed by the name of an environment variable, or file: and a path, and }: write $${ for a literal ${", path)
			n.broken = true
			return
		}
		value, found := "", false
		if isFile {
			value, found = d.fromFile(n, path, file)
		} else {
			value, found = d.fromEnvironment(n, path, name)
		}
		n.broken = n.broken || !found
		if value != "" {
			n.substituted = append(n.substituted, value)
			if len(value) >= secretBytesMin {
				d.secrets[value] = true
			}
		}
		b.WriteString(value)
		s = rest
	}
	b.WriteString(s)
	n.value = b.String()
}

func (d *decoder) fromEnvironment(n *node, path, name string) (string, bool) {
	value, set := d.env(name)
	switch {
	case !set:
		d.fail(n, "%s: the environment variable %s is not set: set it, or write $${ for a literal ${", path, name)
	case value == "":
		d.warn(n.place, "%s: the environment variable %s is set but empty", path, name)
	}
	return value, set
}

// fromFile reads a secret. An empty file is refused, unlike an empty variable: it is most likely being written.
func (d *decoder) fromFile(n *node, path, file string) (string, bool) {
	if d.files == nil {
		d.fail(n, "%s: ${file:%s} cannot be read here", path, printable(file))
		return "", false
	}
	value, problem := d.files.secret(file)
	n.files = append(n.files, file)
	if problem != "" {
		d.fail(n, "%s: the file %s %s", path, printable(file), problem)
	}
	return value, problem == ""
}

// longestFirst lists the values to redact.
func longestFirst(set map[string]bool) []string {
	var out []string
	for s := range set {
		out = append(out, s)
	}
	sort.Slice(out, func(i, j int) bool {
		if len(out[i]) != len(out[j]) {
			return len(out[i]) > len(out[j])
		}
		return out[i] < out[j]
	})
	return out
}
