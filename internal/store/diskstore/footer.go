package diskstore

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A table ends with a footer, which says where its index is: without it nothing of the table can be
// read. Its last bytes are its checksum, the version of its format and a magic number. Pebble reads
// the longest footer that there may be, in one piece.
const (
	footerMagic = "\xf0\x9f\xaa\xb3\xf0\x9f\xaa\xb3"
	footerMost  = 61
	footerEnd   = 4 + 4 + len(footerMagic)
)

// footerSizes are those of the versions that have a checksum.
var footerSizes = map[uint32]int{6: 57, 7: footerMost}

// repairedFooter looks for the one bit of a table's footer that makes its checksum right when it is
// turned; from then on it is read turned back.
func (b *badBlocks) repairedFooter(fs vfs.FS, file string) bool {
	info, err := fs.Stat(file)
	if err != nil {
		return false
	}
	size := min(info.Size(), footerMost)
	here := block{file, info.Size() - size, int(size)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.by[here] != nil {
		return false // that did not help
	}
	data, err := readBlock(fs, file, here.at, here.size)
	if err != nil {
		return false
	}
	bad := &badBlock{}
	if bad.byte, bad.bit, bad.repaired = flippedFooterBit(data); bad.repaired {
		b.by[here] = bad
	}
	return bad.repaired
}

func flippedFooterBit(data []byte) (at int, bit byte, ok bool) {
	for at := range data {
		for bit := range byte(8) {
			data[at] ^= 1 << bit
			ok := isFooter(data)
			data[at] ^= 1 << bit
			if ok {
				return at, bit, true
			}
		}
	}
	return 0, 0, false
}

// isFooter tells whether data ends with a footer whose checksum is right.
func isFooter(data []byte) bool {
	if len(data) < footerEnd || string(data[len(data)-len(footerMagic):]) != footerMagic {
		return false
	}
	size, ok := footerSizes[binary.LittleEndian.Uint32(data[len(data)-len(footerMagic)-4:])]
	if !ok || len(data) < size {
		return false
	}
	footer := data[len(data)-size:]
	sum := footer[size-footerEnd:]
	is := crc32.Update(crc32.Checksum(footer[:size-footerEnd], checksums), checksums, sum[4:])
	return binary.LittleEndian.Uint32(sum) == mask(is)
}
