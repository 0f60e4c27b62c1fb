package config

import (
	"crypto/sha256"
	"errors"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agentrun/executor/pkg/connector"
)

// secretFileMax bounds what ${file:…} puts in; a header that holds more would be refused by any server.
const secretFileMax = 64 << 10

// Digest is what a file held, by SHA-256; the zero value stands for one that could not be read.
type Digest [sha256.Size]byte

// files reads the files that a config names, each once: what is validated, what is used and what is compared later is the
// same content.
type files struct {
	read map[string]*content
}

type content struct {
	text string
	err  error
	sum  Digest
}

func newFiles() *files { return &files{read: map[string]*content{}} }

func (f *files) at(path string) *content {
	c := f.read[path]
	if c == nil {
		b, err := connector.ReadSecretFile(path)
		c = &content{text: string(b), err: err}
		if err == nil {
			c.sum = sha256.Sum256(b)
		}
		f.read[path] = c
	}
	return c
}

// secret is what ${file:path} stands for: the file's text, without the line end that editors put behind it.
func (f *files) secret(path string) (text, problem string) {
	c := f.at(path)
	var inPath *os.PathError
	switch {
	case errors.As(c.err, &inPath):
		return "", "cannot be read (" + inPath.Err.Error() + ")"
	case c.err != nil:
		return "", c.err.Error()
	}
	text = strings.TrimRight(c.text, "\r\n")
	switch {
	case len(text) > secretFileMax:
		return "", "is too large"
	case text == "":
		return "", "is empty"
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return "", "is no text in UTF-8"
	}
	return text, ""
}

func (f *files) digests() map[string]Digest {
	out := make(map[string]Digest, len(f.read))
	for path, c := range f.read {
		out[path] = c.sum
	}
	return out
}

// HeldNow reads the files and says what they hold now, for comparison with File.Files.
func HeldNow(paths map[string]Digest) map[string]Digest {
	now := newFiles()
	for path := range paths {
		now.at(path)
	}
	return now.digests()
}

// secretFiles are the files whose content stands in a mapping's values, with what they held.
func (d *decoder) secretFiles(o *object, keys ...string) (out []connector.SecretFile) {
	for _, key := range keys {
		p := o.n.pair(key)
		if p == nil {
			continue
		}
		p.value.each(func(n *node) {
			for _, path := range n.files {
				f := connector.SecretFile{Path: path, Sum: d.files.at(path).sum}
				if !slices.Contains(out, f) {
					out = append(out, f)
				}
			}
		})
	}
	return out
}
