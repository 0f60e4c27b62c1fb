package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/agentrun/executor/internal/engine"
)

// The layout on disk, format 1. Four buckets:
//
//	intents    dispatch → intent
//	effects    dispatch → effect
//	unsettled  dispatch → nothing: the index of what a start has to look at
//	journal    id, starts, format, size of the file, and which run store it has settled with (see Known)
//
// A dispatch id that is a UUIDv7 is kept as its 16 bytes, so that keys come in order of time and new ones go to the
// right edge of the tree: a commit touches few pages. Any other id is kept as it is behind 0xff. Every value ends in a
// CRC32C over the bucket's tag, the key and the value. Each bucket's sequence is the number of its entries: it lies in a
// page that every commit writes anyway, and shows a page that has lost entries or gone back in time.
const format = 1

var (
	bucketIntents   = []byte("intents")
	bucketEffects   = []byte("effects")
	bucketUnsettled = []byte("unsettled")
	bucketMeta      = []byte("journal")

	metaFormat     = []byte("format")
	metaID         = []byte("id")
	metaStarts     = []byte("starts")
	metaSize       = []byte("size")
	metaCreated    = []byte("store_created")
	metaGeneration = []byte("store_generation")
	metaSeen       = []byte("store_seen")
	metaMember     = []byte("store_member")
	metaFleet      = []byte("store_fleet")
)

const (
	tagIntent    = 'i'
	tagEffect    = 'e'
	tagUnsettled = 'u'
	tagMeta      = 'm'
)

func tagOf(bucket string) (byte, bool) {
	switch bucket {
	case string(bucketIntents):
		return tagIntent, true
	case string(bucketEffects):
		return tagEffect, true
	case string(bucketUnsettled):
		return tagUnsettled, true
	case string(bucketMeta):
		return tagMeta, true
	}
	return 0, false
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(tag byte, key, payload []byte) uint32 {
	c := crc32.Update(0, castagnoli, []byte{tag})
	c = crc32.Update(c, castagnoli, key)
	return crc32.Update(c, castagnoli, payload)
}

// seal appends the checksum; open takes it off and reports whether it fits.
func seal(tag byte, key, payload []byte) []byte {
	return binary.LittleEndian.AppendUint32(payload, checksum(tag, key, payload))
}

func open(tag byte, key, value []byte) ([]byte, bool) {
	if len(value) < 4 {
		return nil, false
	}
	payload, sum := value[:len(value)-4], value[len(value)-4:]
	return payload, binary.LittleEndian.Uint32(sum) == checksum(tag, key, payload)
}

const (
	otherID       = 0xff // first byte of a key that is no UUIDv7; as one it would be of the year 10889
	dispatchBytes = 255  // the longest dispatch id
)

var errDispatch = errors.New("a dispatch id has 1 to 255 bytes")

// keyOf is the key of a dispatch.
func keyOf(d engine.DispatchID) ([]byte, error) {
	if len(d) == 0 || len(d) > dispatchBytes {
		return nil, errDispatch
	}
	var k [16]byte
	if uuid7(string(d), &k) {
		return k[:], nil
	}
	return append([]byte{otherID}, d...), nil
}

// uuid7 reads the one spelling that dispatchOf writes: lower case, with hyphens. Any other spelling is another id.
func uuid7(s string, k *[16]byte) bool {
	if len(s) != 36 || s[14] != '7' {
		return false
	}
	n := 0
	for i := 0; i < len(s); {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if s[i] != '-' {
				return false
			}
			i++
			continue
		}
		hi, lo := nibble(s[i]), nibble(s[i+1])
		if hi > 15 || lo > 15 {
			return false
		}
		k[n] = hi<<4 | lo
		n++
		i += 2
	}
	return k[0] != otherID
}

func nibble(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

// dispatchOf is the dispatch of a key.
func dispatchOf(key []byte) (engine.DispatchID, error) {
	switch {
	case len(key) > 1 && key[0] == otherID:
		return engine.DispatchID(key[1:]), nil
	case len(key) == 16:
		const hex = "0123456789abcdef"
		b := make([]byte, 0, 36)
		for i, c := range key {
			if i == 4 || i == 6 || i == 8 || i == 10 {
				b = append(b, '-')
			}
			b = append(b, hex[c>>4], hex[c&15])
		}
		return engine.DispatchID(b), nil
	}
	return "", fmt.Errorf("%x is no key of a dispatch", key)
}

func timeOrdered(key []byte) bool { return key[0] != otherID }
