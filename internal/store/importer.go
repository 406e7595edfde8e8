package store

import "context"

// Importer is a store that package migrate can copy another one to. Nothing else may use
// the store meanwhile.
type Importer interface {
	Store

	// Take stores records, with their bodies, under the keys that they have. It is
	// idempotent: a key that is stored already is skipped. On an error some may be
	// stored. When it returns nil they survive a crash and a power cut. The ledger counts
	// each as come and in its state; no failure is counted. ErrFull when there is no room.
	Take(ctx context.Context, records []Listed) error

	// TakeMetadata replaces the store's metadata by that of the other store, after all
	// records are taken. It may be called again.
	TakeMetadata(ctx context.Context, b Metadata) error
}

// Metadata is what a store has besides records, receipts and its side table.
type Metadata struct {
	Ledger []LedgerLine
	Groups []GroupCount
	Past   []Passage // newest first, as Retried visits them
	Newest uint64    // the newest key's number, so that none is used twice
}

// MetadataOf reads the metadata of a store, which must not change meanwhile.
func MetadataOf(ctx context.Context, s Store) (b Metadata, err error) {
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
