package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Digests tell whether two files say the same, without showing what: comments, the order of keys and how a value is
// quoted make no difference, and a value from the environment counts as the ${NAME} that is written, so that nothing of it
// can be learned.
type Digests struct {
	File  string            // of everything, 12 hex digits
	Parts map[string]string // of each tool ("tools.pay") and of each other section ("defaults"), 8 hex digits
}

// Digests are the file's.
func (f *File) Digests() Digests {
	var root *node
	if f.doc != nil {
		root = f.doc.root
	}
	d := Digests{File: digest(root)[:12], Parts: map[string]string{}}
	if root == nil {
		return d
	}
	for _, section := range root.pairs {
		if section.key != "tools" || section.value.kind != yaml.MappingNode {
			d.Parts[section.key] = digest(section.value)[:8]
			continue
		}
		for _, tool := range section.value.pairs {
			d.Parts["tools."+tool.key] = digest(tool.value)[:8]
		}
	}
	return d
}

func digest(n *node) string {
	h := sha256.New()
	if n != nil {
		n.hash(h)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// hash writes the value in a form in which every length is told, so that no two values have the same.
func (n *node) hash(h hash.Hash) {
	switch n.kind {
	case yaml.MappingNode:
		fmt.Fprintf(h, "{%d", len(n.pairs))
		for _, key := range slices.Sorted(maps.Keys(n.index)) {
			fmt.Fprintf(h, "%d:%s", len(key), key)
			n.pair(key).value.hash(h)
		}
	case yaml.SequenceNode:
		fmt.Fprintf(h, "[%d", len(n.items))
		for _, item := range n.items {
			item.hash(h)
		}
	default:
		text := n.text
		kind := n.resolve()
		switch kind {
		case nullScalar:
			text = ""
		case numberScalar:
			text = string(jsonNumber(text))
		}
		fmt.Fprintf(h, "%d=%d:%s", kind, len(text), text)
	}
}
