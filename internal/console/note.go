package console

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

// longestNote is in characters.
const longestNote = 2000

// NoteGroup sets what people say of a group; "" takes it away.
func (c *Console) NoteGroup(ctx context.Context, by auth.Caller, groupID, note string) error {
	if err := c.permit(by, auth.Operator, "note", groupID); err != nil {
		return err
	}
	if utf8.RuneCountInString(note) > longestNote {
		return fmt.Errorf("%w: the note has more than %d characters", ErrInvalid, longestNote)
	}
	seen, err := c.groupsSeen(ctx, by)
	if err != nil {
		return err
	}
	for i := range seen {
		if g := &seen[i]; g.ID.String() == groupID {
			return c.setNote(ctx, by, g, note)
		}
	}
	return fmt.Errorf("%w: no group %.40q", ErrNotFound, groupID)
}

func (c *Console) setNote(ctx context.Context, by auth.Caller, g *store.GroupCount, note string) error {
	end, err := c.begin(by, "note", "group "+g.ID.String()+" of "+g.Queue, 0, "")
	if err != nil {
		return err
	}
	e := store.Entry{Name: "group/" + g.ID.String() + "/note"}
	if note != "" {
		e.Value = []byte(note)
	}
	err = c.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{e})
	end(err, 0)
	return err
}
