package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/google/uuid"

	"github.com/agentrun/executor/internal/engine"
)

// The layout on disk, format 1. Four buckets:
//
//	intents    dispatch → intent
//	effects    dispatch → effect
//	unsettled  dispatch → nothing: the index of what a start has to look at
//	journal    id, starts, format, size of the file, and which run store it has agreed on (see Known)
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
	// In its one spelling: any other, which uuid reads too, is another id.
	if k, err := uuid.Parse(string(d)); err == nil && k.Version() == 7 && k[0] != otherID && k.String() == string(d) {
		return k[:], nil
	}
	return append([]byte{otherID}, d...), nil
}

// dispatchOf is the dispatch of a key.
func dispatchOf(key []byte) (engine.DispatchID, error) {
	switch {
	case len(key) > 1 && key[0] == otherID:
		return engine.DispatchID(key[1:]), nil
	case len(key) == 16:
		return engine.DispatchID(uuid.UUID(key).String()), nil
	}
	return "", fmt.Errorf("%x is no key of a dispatch", key)
}

func timeOrdered(key []byte) bool { return key[0] != otherID }
