package config

import (
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

const (
	// secretFileMax bounds what ${file:…} puts in; a header that holds more would be refused by any server.
	secretFileMax = 64 << 10
	// watchedFileMax bounds what is read of a TLS file to see whether it has changed.
	watchedFileMax = 1 << 20
)

var (
	errNoRegularFile = errors.New("is no regular file")
	errFileTooLarge  = errors.New("is too large")
)

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
		b, err := readFile(path, watchedFileMax)
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
		return "", errFileTooLarge.Error()
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

// readFile reads a regular file: a pipe or a terminal would hold up whoever asks, and gives nothing a second time.
func readFile(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNoRegularFile
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		return nil, errFileTooLarge
	}
	return b, err
}
