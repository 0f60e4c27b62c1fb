package connector

import (
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"time"
)

// SecretFileMax bounds what is read of a file with a secret, in bytes.
const SecretFileMax = 1 << 20

// RenewalWait is how long an attempt waits for a secret whose file was seen to be renewed: whoever watches the files takes
// them in within that.
const RenewalWait = 5 * time.Second

// SecretFile is a file whose content stands in a spec, with what it held then.
type SecretFile struct {
	Path string
	Sum  [sha256.Size]byte
}

var (
	errNoRegularFile = errors.New("is no regular file")
	errFileTooLarge  = errors.New("is too large")
)

// ReadSecretFile reads a regular file of at most SecretFileMax bytes: a pipe or a terminal would hold up whoever asks, and
// gives nothing a second time.
func ReadSecretFile(path string) ([]byte, error) {
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
	b, err := io.ReadAll(io.LimitReader(f, SecretFileMax+1))
	if err == nil && len(b) > SecretFileMax {
		return nil, errFileTooLarge
	}
	return b, err
}

// Renewed reports whether one of the files holds something else by now, or is just being replaced.
func Renewed(files []SecretFile) bool {
	for _, f := range files {
		if b, err := ReadSecretFile(f.Path); err != nil || sha256.Sum256(b) != f.Sum {
			return true
		}
	}
	return false
}
