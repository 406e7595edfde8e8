package diskstore

import (
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/store"
)

// formatVersion is the format that is written, and the only one that is read. Whatever an
// earlier version would read wrongly, or leave out, gets a new number. Formats 1 to 3 were
// those of builds before the first release.
const formatVersion = 4

// checkFormat refuses a folder of another format before anything is written. numbered is
// false where the folder has no number: it is new, or the number was lost with a damaged
// block.
func (s *Store) checkFormat() (numbered bool, err error) {
	f, err := s.get(keyFormat)
	switch {
	case err != nil:
		return false, err
	case f == nil && s.damage.lostKey(keyFormat):
		return false, s.checkFormatByWitness()
	case f != nil && string(f) != string([]byte{formatVersion}):
		return false, fmt.Errorf("%w: it is format %s, and this version of Redrive reads format %d. Nothing was changed. Run the version that wrote it: its `redrive export`, and `redrive import` of this version, take the messages to a new folder. Or put a snapshot from before its upgrade in the place of the folder", store.ErrFormat, strings.Trim(fmt.Sprint(f), "[]"), formatVersion)
	}
	return f != nil, nil
}

// checkFormatByWitness refuses a folder whose number is lost unless it has a witness, which
// earlier formats (but for the last builds of format 3) had not.
func (s *Store) checkFormatByWitness() error {
	was, _, err := s.witness.read()
	if err == nil && was == nil {
		err = fmt.Errorf("%w: the number of its format cannot be read, and its witness is gone", pebble.ErrCorruption)
	}
	return err
}

func (s *Store) writeFormat() error {
	return s.db.Set(keyFormat, []byte{formatVersion}, pebble.Sync)
}
