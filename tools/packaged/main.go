// Command packaged writes what a package has of the command line, besides the program: its manual
// pages and the completions of three shells. scripts/release runs it:
//
//	go run ./tools/packaged FOLDER DATE
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra/doc"

	"github.com/redrive-mq/redrive/internal/cli"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: packaged FOLDER DATE")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "packaged:", err)
		os.Exit(1)
	}
}

func write(folder, date string) error {
	at, err := time.Parse(time.RFC3339, date)
	if err != nil {
		return err
	}
	root := cli.Commands()
	root.InitDefaultCompletionCmd()
	pages := filepath.Join(folder, "man")
	if err := os.MkdirAll(pages, 0o755); err != nil {
		return err
	}
	header := &doc.GenManHeader{Section: "1", Date: &at, Source: "Redrive", Manual: "Redrive"}
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, header, pages); err != nil {
		return err
	}
	return completions(folder)
}

func completions(folder string) error {
	root := cli.Commands()
	for name, generate := range map[string]func(string) error{
		"redrive.bash": func(file string) error { return root.GenBashCompletionFileV2(file, true) },
		"_redrive":     root.GenZshCompletionFile,
		"redrive.fish": func(file string) error { return root.GenFishCompletionFile(file, true) },
	} {
		if err := generate(filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	return nil
}
