// Package docs embeds the documentation, which the page serves.
package docs

import "embed"

// Files are the pages and the pictures in them, by their paths in this folder.
//
//go:embed *.md */*.md images/adopt-*.png
var Files embed.FS
