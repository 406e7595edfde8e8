package store

import "context"

// Taker is what a store offers besides to take over what another one kept: see
// package migrate. Nothing else uses it meanwhile.
type Taker interface {
	Store

	// Take keeps records, with their bodies, under the very keys they have. One whose
	// key is kept already is left alone, so that taking twice is taking once, also
	// after an error, which may come when some were taken. When it returns nil they
	// survive a crash and a power cut. In the ledger each came, and is what it is; no
	// failure is counted. ErrFull when there is no room.
	Take(ctx context.Context, records []Listed) error

	// TakeBooks makes all that is known besides the records what it was elsewhere,
	// when all records are taken. It may be called again.
	TakeBooks(ctx context.Context, b Books) error
}

// Books are what a store knows besides records, receipts and its side table.
type Books struct {
	Ledger []LedgerLine
	Groups []GroupCount
	Past   []Passage // newest first, as Retried visits them
	Newest uint64    // so that no number is given twice
}

// BooksOf reads those of a store that does not change meanwhile.
func BooksOf(ctx context.Context, s Store) (b Books, err error) {
	if b.Ledger, err = s.Ledger(ctx); err != nil {
		return b, err
	}
	if b.Groups, err = s.Groups(ctx); err != nil {
		return b, err
	}
	if b.Newest, err = s.NewestKey(ctx); err != nil {
		return b, err
	}
	err = s.Retried(ctx, func(p Passage) (bool, error) {
		b.Past = append(b.Past, p)
		return len(b.Past) < PastKept, nil
	})
	return b, err
}
