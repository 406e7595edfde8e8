package diskstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// badBlocks are the blocks of tables that could not be read, or only with a bit turned
// back. Pebble takes up to a second over each read of a damaged block, to find out which
// bit it is; walk, which looks for where one ends, would read it a hundred times.
type badBlocks struct {
	mu sync.Mutex
	by map[block]*badBlock
}

// block is one as Pebble reads it, with its trailer: the kind of compression, a byte, and
// the checksum, four.
type block struct {
	file string
	at   int64
	size int
}

const blockTrailer = 5

type badBlock struct {
	err   error
	until time.Time // of a disk that does not read; zero: for good
	// repaired: turning this bit back makes the checksum right.
	repaired bool
	byte     int
	bit      byte
	blank    []byte // is read instead
}

// eioKept is how long a block that the disk did not read twice is not asked for again.
const eioKept = time.Minute

// checksumError is how Pebble says where a damaged block is. Without a match the damage
// costs more messages, and more time.
var checksumError = regexp.MustCompile(`block (\d+)/(\d+): `)

// checksumErrorAt is the block that an error is of; its file is not known from that.
func checksumErrorAt(err error) (here block) {
	if err == nil {
		return here
	}
	if match := checksumError.FindStringSubmatch(err.Error()); match != nil {
		here.at, _ = strconv.ParseInt(match[1], 10, 64)
		here.size, _ = strconv.Atoi(match[2])
	}
	return here
}

// found takes note of a block whose checksum is wrong; lost is true when it is new, and no
// bit of it can be turned back.
func (b *badBlocks) found(fs vfs.FS, file string, err error) (at block, repaired, lost bool) {
	at = checksumErrorAt(err)
	if at.size == 0 {
		return at, false, false
	}
	here := block{file, at.at, at.size + blockTrailer}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.by[here] != nil {
		return at, false, false // it has been reported
	}
	bad := &badBlock{err: fmt.Errorf("%w: %v", pebble.ErrCorruption, err)}
	if data, err := readBlock(fs, file, here.at, here.size); err == nil {
		if sound(data) {
			return at, false, false // it was the read, not the disk, that went wrong
		}
		bad.byte, bad.bit, bad.repaired = flippedBit(data)
	}
	b.by[here] = bad
	return at, bad.repaired, !bad.repaired
}

// leaveOut makes a lost block be read as one with nothing in it.
func (b *badBlocks) leaveOut(file string, l *lostBlock) {
	if l.Index {
		b.leaveOut(file, l.under())
	}
	blank := l.blank()
	b.mu.Lock()
	defer b.mu.Unlock()
	here := block{file, l.At, l.Size + blockTrailer}
	if b.by[here] == nil {
		b.by[here] = &badBlock{err: fmt.Errorf("%w: %s", pebble.ErrCorruption, l.place())}
	}
	b.by[here].blank = blank
}

// unrepaired are the blocks that cannot be read.
func (b *badBlocks) unrepaired() (all []block) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for at, bad := range b.by {
		if !bad.repaired {
			all = append(all, at)
		}
	}
	return all
}

func readBlock(fs vfs.FS, file string, at int64, size int) ([]byte, error) {
	f, err := fs.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, size)
	_, err = f.ReadAt(data, at)
	return data, err
}

// read reads p from a file, with what is known of the block that it is.
func (b *badBlocks) read(f vfs.File, file string, p []byte, at int64) (int, error) {
	here := block{file, at, len(p)}
	b.mu.Lock()
	bad := b.by[here]
	if bad != nil && !bad.until.IsZero() && time.Now().After(bad.until) {
		delete(b.by, here)
		bad = nil
	}
	b.mu.Unlock()
	if bad != nil && bad.blank != nil {
		return copy(p, bad.blank), nil
	}
	if bad != nil && !bad.repaired {
		return 0, bad.err
	}
	n, err := f.ReadAt(p, at)
	if bad != nil && err == nil {
		p[bad.byte] ^= 1 << bad.bit
	}
	if !errors.Is(err, syscall.EIO) {
		return n, err
	}
	if n, err = f.ReadAt(p, at); errors.Is(err, syscall.EIO) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.by[here] = &badBlock{err: err, until: time.Now().Add(eioKept)}
	}
	return n, err
}

// sound tells whether the checksum of a block with its trailer is right.
func sound(data []byte) bool {
	end := len(data) - 4
	return end >= 1 && binary.LittleEndian.Uint32(data[end:]) == mask(crc32.Checksum(data[:end], checksums))
}

// flippedBit finds the one bit of a block with its trailer that makes the checksum right
// when it is turned. A CRC is linear: a bit changes it by an amount that depends on its
// place alone. More than three flipped bits look like one with a chance of 1 in 16,000.
func flippedBit(data []byte) (at int, bit byte, ok bool) {
	end := len(data) - 4
	if end < 1 {
		return 0, 0, false
	}
	sum, is := binary.LittleEndian.Uint32(data[end:]), crc32.Checksum(data[:end], checksums)
	if off := sum ^ mask(is); bits.OnesCount32(off) == 1 { // of the checksum itself
		n := bits.TrailingZeros32(off)
		return end + n/8, byte(n % 8), true
	}
	off := unmask(sum) ^ is
	var by [8]uint32 // how much each bit of a byte changes it
	for n := range by {
		by[n] = checksums[1<<n]
	}
	for at = end - 1; at >= 0; at-- {
		for n, change := range by {
			if change == off {
				return at, byte(n), true
			}
			by[n] = checksums[byte(change)] ^ change>>8
		}
	}
	return 0, 0, false
}

// mask and unmask are how tables keep a CRC.
func mask(crc uint32) uint32 { return bits.RotateLeft32(crc, -15) + 0xa282ead8 }

func unmask(sum uint32) uint32 { return bits.RotateLeft32(sum-0xa282ead8, 15) }
