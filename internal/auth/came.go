package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// camePrefix begins the entries of who has signed in from where, which hold when.
	camePrefix = "signed-in/"
	// cameFor is how long that is kept after the last start at which they signed in.
	cameFor = 90 * 24 * time.Hour
)

// KeepIn has the users remembered who signed in, and from where, so that after a restart
// others who guess at the same address do not hold them up. It is called before SignIn.
func (u *Users) KeepIn(s SessionStore) { u.kept = s }

func cameName(pair string) string {
	sum := sha256.Sum256([]byte(pair))
	return camePrefix + hex.EncodeToString(sum[:])
}

// hasCome looks whether a name has signed in from an address, before this process too.
// What the store does not say counts as no.
func (u *Users) hasCome(ctx context.Context, pair string) (yes bool) {
	if u.kept == nil {
		return false
	}
	name := cameName(pair)
	_ = u.kept.Entries(ctx, name, "", func(e store.Entry) (bool, error) {
		yes = e.Name == name
		return false, nil
	})
	return yes
}

// keepCome writes that a name signed in, once in each process, and deletes at the first
// time what is too old.
func (u *Users) keepCome(ctx context.Context, pair string) {
	if u.kept == nil {
		return
	}
	now := time.Now()
	u.sweep.Do(func() {
		var old []string
		_ = u.kept.Entries(ctx, camePrefix, "", func(e store.Entry) (bool, error) {
			var at time.Time
			if at.UnmarshalText(e.Value) != nil || now.Sub(at) > cameFor {
				old = append(old, e.Name)
			}
			return true, nil
		})
		for _, name := range old {
			_ = u.kept.DeleteEntries(ctx, name)
		}
	})
	if at, err := now.MarshalText(); err == nil {
		_ = u.kept.PutEntries(ctx, []store.Entry{{Name: cameName(pair), Value: at}}) // else they are limited as others are
	}
}
