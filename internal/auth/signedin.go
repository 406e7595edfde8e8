package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// signedInPrefix begins an entry for each pair of user and address that has signed in: when.
	signedInPrefix = "signed-in/"
	// signedInFor is how long it is kept after the last start of the service at which they signed in.
	signedInFor = 90 * 24 * time.Hour
)

// RememberIn keeps who signed in, and from where, in s, so that failures of others at the same
// address do not limit them after a restart either. Call it before SignIn.
func (u *Users) RememberIn(s store.SideTable) { u.kept = s }

func signedInName(pair string) string {
	sum := sha256.Sum256([]byte(pair))
	return signedInPrefix + hex.EncodeToString(sum[:])
}

// signedInBefore tells whether a name has signed in from an address, in earlier processes too; no
// where the store cannot tell.
func (u *Users) signedInBefore(ctx context.Context, pair string) (yes bool) {
	if u.kept == nil {
		return false
	}
	name := signedInName(pair)
	_ = u.kept.Entries(ctx, name, "", func(e store.Entry) (bool, error) {
		yes = e.Name == name
		return false, nil
	})
	return yes
}

// keepSignedIn stores that a name signed in, once in each process, and the first time deletes
// what is too old.
func (u *Users) keepSignedIn(ctx context.Context, pair string) {
	if u.kept == nil {
		return
	}
	now := time.Now()
	u.sweep.Do(func() {
		var old []string
		_ = u.kept.Entries(ctx, signedInPrefix, "", func(e store.Entry) (bool, error) {
			var at time.Time
			if at.UnmarshalText(e.Value) != nil || now.Sub(at) > signedInFor {
				old = append(old, e.Name)
			}
			return true, nil
		})
		for _, name := range old {
			_ = u.kept.DeleteEntries(ctx, name)
		}
	})
	if at, err := now.MarshalText(); err == nil {
		_ = u.kept.PutEntries(ctx, []store.Entry{{Name: signedInName(pair), Value: at}}) // else they are limited as others are
	}
}
