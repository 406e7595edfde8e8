package inspect

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
)

// maxAuditPage bounds the texts of a page of the audit log, in bytes: one line may name 1,000 messages.
const maxAuditPage = 1 << 20

// AuditLog returns a page of who did what, newest first; after is the end of the page before.
func (in *Inspector) AuditLog(
	ctx context.Context, by auth.Caller, after string, limit int,
) (page []audit.Entry, next string, err error) {
	if err := by.MaySee(auth.Admin); err != nil {
		return nil, "", err
	}
	if by.Queues != nil { // a line may name any queue, in free text
		return nil, "", fmt.Errorf("%w: the audit log is about all queues, and %s is limited to some",
			auth.ErrForbidden, by.Name)
	}
	before := int64(math.MaxInt64)
	if after != "" {
		if before, err = strconv.ParseInt(after, 10, 64); err != nil || before < 1 {
			return nil, "", fmt.Errorf("%w: %.60q is not the end of a page", ErrInvalid, after)
		}
	}
	if limit, err = PageSize(limit); err != nil {
		return nil, "", err
	}
	page = []audit.Entry{}
	size := 0
	if in.Audit == nil {
		return page, "", nil
	}
	err = in.Audit.Before(ctx, before, func(e audit.Entry) (bool, error) {
		if len(page) == limit {
			next = strconv.FormatInt(page[limit-1].N, 10)
			return false, nil
		}
		if size += len(e.On) + len(e.Why); size > maxAuditPage && len(page) > 0 {
			next = strconv.FormatInt(page[len(page)-1].N, 10)
			return false, nil
		}
		page = append(page, e)
		return true, nil
	})
	return page, next, err
}
