package actions

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
)

// longestNote is in characters.
const longestNote = 2000

// NoteGroup sets the note of an error group; "" removes it.
func (a *Actions) NoteGroup(ctx context.Context, by auth.Caller, groupID, note string) error {
	if err := a.Permit(by, auth.Operator, "note", groupID); err != nil {
		return err
	}
	if utf8.RuneCountInString(note) > longestNote {
		return fmt.Errorf("%w: the note has more than %d characters", inspect.ErrInvalid, longestNote)
	}
	g, err := a.Inspect.Group(ctx, by, groupID)
	if err != nil {
		return err
	}
	end, err := a.Begin(by, "note", "group "+g.ID.String()+" of "+g.Queue, 0, "")
	if err != nil {
		return err
	}
	e := store.Entry{Name: "group/" + g.ID.String() + "/note"}
	if note != "" {
		e.Value = []byte(note)
	}
	err = a.Store.PutEntries(context.WithoutCancel(ctx), []store.Entry{e})
	end(err, 0)
	return err
}
