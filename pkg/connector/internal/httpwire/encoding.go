package httpwire

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// AcceptEncoding is what every request asks for: a body as it is. There are servers and proxies that send a compressed one all
// the same, and those are read.
const AcceptEncoding = "identity"

// windowMax bounds what a zstd stream may make its reader remember, in bytes (RFC 9659: more must not be sent over HTTP).
const windowMax = 8 << 20

// Reading is how the reading of a body came out.
type Reading uint8

// The ways of it.
const (
	Whole    Reading = iota
	TooLarge         // as it came, or as it is when it is decoded
	Broken           // cut, or not in the encoding that it says
	Foreign          // whole, but in an encoding that is not read, or in several on top of each other
)

// ErrForeign is of a body in an encoding that is not read.
var ErrForeign = errors.New("httpwire: a body in an encoding that is not read")

// ReadBody reads a response's body to its end, decodes it, and closes it. No more than limit bytes are taken of it as it
// came, and none is returned beyond limit when it is decoded.
func ReadBody(resp *http.Response, limit int) ([]byte, Reading) {
	defer resp.Body.Close()
	if resp.ContentLength > int64(limit) && resp.Request.Method != http.MethodHead {
		return nil, TooLarge
	}
	raw := &io.LimitedReader{R: resp.Body, N: int64(limit) + 1}
	decode, err := decoder(resp.Header)
	if decode == nil {
		b, reading := readAll(raw, limit, resp.ContentLength)
		if err != nil && reading == Whole && len(b) > 0 {
			return nil, Foreign
		}
		return b, reading
	}
	in := bufio.NewReader(raw)
	if _, err := in.Peek(1); err == io.EOF && raw.N > 0 {
		return nil, Whole // nothing, of which some say what it would be encoded in
	}
	out := &decoded{open: decode, in: in}
	defer out.release()
	b, reading := readAll(out, limit, 0)
	if reading == Whole {
		if n, err := io.Copy(io.Discard, in); n > 0 || err != nil {
			reading = Broken // it goes on behind its end
		}
	}
	if raw.N <= 0 {
		reading = TooLarge
	}
	if reading != Whole {
		return nil, reading
	}
	return b, Whole
}

func readAll(r io.Reader, limit int, expected int64) ([]byte, Reading) {
	var out bytes.Buffer
	if expected > 0 && expected <= int64(limit) {
		out.Grow(int(expected) + bytes.MinRead)
	}
	n, err := out.ReadFrom(io.LimitReader(r, int64(limit)+1))
	switch {
	case n > int64(limit):
		return nil, TooLarge
	case err != nil:
		return nil, Broken
	}
	return out.Bytes(), Whole
}

// Decode makes the body of a response that is read bit by bit, an event stream for one, the decoded one.
func Decode(resp *http.Response) error {
	decode, err := decoder(resp.Header)
	if decode != nil {
		resp.Body = &decodedBody{decoded{open: decode, in: bufio.NewReader(resp.Body)}, resp.Body}
	}
	return err
}

// decoder finds what reads the encoding that a header names: nil for none, ErrForeign for what is not read.
func decoder(h http.Header) (func(*bufio.Reader) (io.Reader, func(), error), error) {
	var codings []string
	for _, line := range h["Content-Encoding"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.ToLower(strings.TrimSpace(name)); name != "" && name != "identity" {
				codings = append(codings, name)
			}
		}
	}
	switch {
	case len(codings) == 0:
		return nil, nil
	case len(codings) > 1 || decoders[codings[0]] == nil:
		return nil, ErrForeign
	}
	return decoders[codings[0]], nil
}

// decoders are the content codings of RFC 9110 (8.4.1), RFC 8878 and RFC 7932 that are read. They take no more of what they
// read from than has come, so that an event is seen when its bytes are there.
var decoders = map[string]func(*bufio.Reader) (io.Reader, func(), error){
	"gzip":    fromGzip,
	"x-gzip":  fromGzip,
	"deflate": fromDeflate,
	"zstd": func(in *bufio.Reader) (io.Reader, func(), error) {
		d, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(windowMax))
		if err != nil {
			return nil, nil, err
		}
		return d, d.Close, nil
	},
	"br": func(in *bufio.Reader) (io.Reader, func(), error) { return brotli.NewReader(in), func() {}, nil },
}

func fromGzip(in *bufio.Reader) (io.Reader, func(), error) {
	r, err := gzip.NewReader(in)
	return r, func() {}, err
}

// fromDeflate reads what the RFC means by deflate (zlib's format), and what some servers send under that name: the bare
// stream. The two bytes that zlib begins with are told from it by its check bits.
func fromDeflate(in *bufio.Reader) (io.Reader, func(), error) {
	if b, err := in.Peek(2); err == nil && b[0]&0x0f == 8 && b[0]>>4 <= 7 && (int(b[0])<<8|int(b[1]))%31 == 0 {
		r, err := zlib.NewReader(in)
		return r, func() {}, err
	}
	return flate.NewReader(in), func() {}, nil
}

// decoded opens its decoder with the first read, because that may wait for the first bytes.
type decoded struct {
	open  func(*bufio.Reader) (io.Reader, func(), error)
	in    *bufio.Reader
	out   io.Reader
	close func()
	err   error
}

func (d *decoded) Read(b []byte) (int, error) {
	if d.out == nil && d.err == nil {
		d.out, d.close, d.err = d.open(d.in)
	}
	if d.err != nil {
		return 0, d.err
	}
	return d.out.Read(b)
}

func (d *decoded) release() {
	if d.out != nil && d.close != nil {
		d.close()
		d.out, d.err = nil, io.ErrClosedPipe
	}
}

// decodedBody is a decoded body with what it comes from.
type decodedBody struct {
	decoded
	raw io.ReadCloser
}

// Read implements io.Reader. After the decoder's end the rest is read, so that the connection can be used again.
func (d *decodedBody) Read(b []byte) (int, error) {
	n, err := d.decoded.Read(b)
	if err == io.EOF {
		_, _ = io.CopyN(io.Discard, d.in, 64)
	}
	return n, err
}

func (d *decodedBody) Close() error {
	d.release()
	return d.raw.Close()
}
