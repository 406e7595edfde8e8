package inspect

import (
	"context"
	"strconv"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
)

// AuditLog returns a page of who did what, newest first; after is the end of the page before.
func (in *Inspector) AuditLog(ctx context.Context, by auth.Caller, after string, limit int) (page []audit.Entry, next string, err error) {
	if err := mayAudit(by); err != nil {
		return nil, "", err
	}
	before, err := readAuditPlace(after)
	if err != nil {
		return nil, "", err
	}
	if limit, err = PageSize(limit); err != nil {
		return nil, "", err
	}
	page = []audit.Entry{}
	if in.Audit == nil {
		return page, "", nil
	}
	err = in.Audit.Before(ctx, before, func(e audit.Entry) (bool, error) {
		if len(page) == limit {
			next = strconv.FormatInt(page[limit-1].N, 10)
			return false, nil
		}
		page = append(page, e)
		return true, nil
	})
	return page, next, err
}
