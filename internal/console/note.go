package console

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

// longestNote is how long a note may be, in characters.
const longestNote = 2000

// NoteGroup writes a person's note beside a group of failures; an empty one takes
// it away.
func (c *Console) NoteGroup(ctx context.Context, by auth.Caller, groupID, note string) error {
	if err := c.permit(by, auth.Operator, "note", groupID); err != nil {
		return err
	}
	if !utf8.ValidString(note) || utf8.RuneCountInString(note) > longestNote {
		return fmt.Errorf("%w: a note is text of at most %d characters", ErrInvalid, longestNote)
	}
	groups, err := c.groupsSeen(ctx, by)
	if err != nil {
		return err
	}
	for _, g := range groups {
		if g.ID.String() != groupID {
			continue
		}
		end, err := c.begin(by, "note", groupID, 0, "")
		if err != nil {
			return err
		}
		e := store.Entry{Name: store.NoteName(g.ID)}
		if note != "" {
			e.Value = []byte(note)
		}
		err = c.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{e})
		end(err, 0)
		return err
	}
	return fmt.Errorf("%w: no group %.40q", ErrNotFound, groupID)
}
