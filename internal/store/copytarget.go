package store

import "context"

// CopyTarget is a store that package migrate can copy another one to. Nothing else may use
// the store meanwhile.
type CopyTarget interface {
	Store

	// AddListed stores records, with their bodies, under the keys that they have. It is
	// idempotent: a key that is stored already is skipped. On an error some may be
	// stored. When it returns nil they survive a crash and a power cut. The ledger counts
	// each in In and in its state; no failure is counted. ErrFull when there is no room.
	AddListed(ctx context.Context, records []Listed) error

	// SetMetadata replaces the store's metadata by that of the other store, after all
	// records are added. It may be called again.
	SetMetadata(ctx context.Context, b Metadata) error
}

// Metadata is what a store has besides records, receipts and its side table.
type Metadata struct {
	Ledger []LedgerLine
	Groups []GroupCount
	Past   []PastFailure // newest first, as EachPastFailure visits them
	Newest uint64        // the newest key's number, so that none is used twice
}

// MetadataOf reads the metadata of a store, which must not change meanwhile.
func MetadataOf(ctx context.Context, s Store) (b Metadata, err error) {
	if b.Ledger, err = s.Ledger(ctx); err != nil {
		return b, err
	}
	if b.Groups, err = s.Groups(ctx); err != nil {
		return b, err
	}
	if b.Newest, err = s.NewestNumber(ctx); err != nil {
		return b, err
	}
	err = s.EachPastFailure(ctx, func(p PastFailure) (bool, error) {
		b.Past = append(b.Past, p)
		return len(b.Past) < PastFailuresKept, nil
	})
	return b, err
}
