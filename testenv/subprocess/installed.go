package subprocess

import (
	"cmp"
	"os"
	"path/filepath"
)

// Installed is the folder that scripts/install installs into, for all clones: RabbitMQ 4 and Valkey
// in sid/, clients of other languages in clients/.
func Installed() string {
	cache, _ := os.UserCacheDir()
	return cmp.Or(os.Getenv("REDRIVE_BROKERS_DIR"), filepath.Join(cache, "redrive"))
}
