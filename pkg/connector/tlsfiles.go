package connector

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Read makes a client's config of the files, with a digest of what they hold: each is read once, so that the digest is of
// what is used. A file that was replaced has another content under its name. An error is a *SpecError with a path that
// starts with "tls"; it holds nothing of the files.
func (s TLSSpec) Read() (config *tls.Config, files [sha256.Size]byte, err error) {
	at := func(key, message string) (*tls.Config, [sha256.Size]byte, error) {
		return nil, files, &SpecError{Path: []any{"tls", key}, Message: message}
	}
	config = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.ServerName}
	digest := sha256.New()
	read := func(name string) ([]byte, error) {
		b, err := os.ReadFile(name)
		fmt.Fprintf(digest, "%d %s", len(b), b)
		return b, err
	}
	if s.CA != "" {
		pem, err := read(s.CA)
		if err != nil {
			return at("ca", "cannot be read")
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return at("ca", "holds no PEM certificate")
		}
	}
	if (s.Cert == "") != (s.Key == "") {
		return at("cert", "cert and key come together")
	}
	if s.Cert != "" {
		cert, err1 := read(s.Cert)
		key, err2 := read(s.Key)
		pair, err3 := tls.X509KeyPair(cert, key)
		if errors.Join(err1, err2, err3) != nil {
			return at("cert", "certificate and key cannot be loaded as a PEM pair")
		}
		config.Certificates = []tls.Certificate{pair}
	}
	digest.Sum(files[:0])
	return config, files, nil
}
