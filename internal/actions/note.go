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

// NoteGroup sets the note of an error group, or of all with the same error; "" removes it.
func (a *Actions) NoteGroup(ctx context.Context, by auth.Caller, groupID, note string) error {
	if err := a.Permit(by, auth.Operator, "note", groupID); err != nil {
		return err
	}
	if utf8.RuneCountInString(note) > longestNote {
		return fmt.Errorf("%w: the note has more than %d characters", inspect.ErrInvalid, longestNote)
	}
	groups, err := a.Inspect.GroupsNamed(ctx, by, groupID)
	if err != nil {
		return err
	}
	on := "group " + groupID + " of " + groups[0].Queue
	if len(groups) > 1 {
		on = fmt.Sprintf("group %s of %d queues", groupID, len(groups))
	}
	end, err := a.Begin(by, "note", on, 0, "")
	if err != nil {
		return err
	}
	entries := make([]store.Entry, len(groups))
	for i, g := range groups {
		entries[i].Name = "group/" + g.ID.String() + "/note"
		if note != "" {
			entries[i].Value = []byte(note)
		}
	}
	err = a.Store.PutEntries(context.WithoutCancel(ctx), entries)
	end(err, 0)
	return err
}
