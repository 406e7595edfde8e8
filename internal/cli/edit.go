package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
)

func (p *program) edit() *cobra.Command {
	var r actions.EditRequest
	var bodyFile, at string
	var set []string
	c := p.withClient(&cobra.Command{
		Use:   "edit ID",
		Short: "Change a message's body or headers, and replay it",
		Long: `The edited message is a new one, which starts again at attempt 1. The original is
discarded and can be restored for a set time. Each names the other.

Without flags for body or headers it opens the editor ($VISUAL, $EDITOR) on the decoded
body, shows the difference and asks. A body that was base64, compressed or Protobuf is
encoded again by the same steps; edit MessagePack and CBOR elsewhere, and give them with
--body-file. If you change nothing, nothing is sent.

With such flags it does not ask: --dry-run shows the difference and sends nothing.`,
		Example: `  redrive edit 0198f0a0-0000-7000-8000-000000000001
  redrive edit 0198f0a0-0000-7000-8000-000000000001 --set-header tenant=acme --remove-header debug
  jq '.total = 10' order.json | redrive edit 0198f0a0-0000-7000-8000-000000000001 --body-file -`,
	}, func(ctx context.Context, client httpapi.Client, args []string) (err error) {
		r.ID, r.SetHeaders = args[0], map[string]string{}
		for _, s := range set {
			name, value, ok := strings.Cut(s, "=")
			if !ok {
				return fmt.Errorf("--set-header %q: expected NAME=VALUE: %w", s, errUsage)
			}
			r.SetHeaders[name] = value
		}
		if r.At, err = parseWhen(at); err != nil {
			return err
		}
		if bodyFile != "" {
			body, err := readBody(p.in, []string{bodyFile})
			if err != nil {
				return err
			}
			r.Body = &body
		}
		if r.Body == nil && len(set) == 0 && len(r.RemoveHeaders) == 0 {
			return p.editByHand(ctx, client, r)
		}
		would, err := p.difference(ctx, client, r)
		if err != nil {
			return err
		}
		return p.send(ctx, client, r, would)
	})
	f := c.Flags()
	f.StringVar(&bodyFile, "body-file", "", "the new body, byte for byte, from a file, or - for standard input")
	f.StringArrayVar(&set, "set-header", nil, "NAME=VALUE, repeat it for several; a header keeps its type")
	f.StringArrayVar(&r.RemoveHeaders, "remove-header", nil, "the name of a header to remove")
	f.StringVar(&at, "at", "", `when it is retried: a time such as 2026-11-21T18:30:00Z, or "in 10m"; left out: now`)
	f.StringVar(&r.Reason, "reason", "", "why, for the audit log")
	f.BoolVar(&r.DryRun, "dry-run", false, "only show the difference")
	f.BoolVar(&p.yes, "yes", false, "do not ask")
	return p.withFormats(c, "table", "json", "yaml", "name")
}

func (p *program) difference(
	ctx context.Context, client httpapi.Client, r actions.EditRequest,
) (actions.Edited, error) {
	r.DryRun = true
	would, err := client.Edit(ctx, r)
	if err != nil {
		return would, err
	}
	for _, f := range would.Fields {
		fmt.Fprintln(p.err, plain(f.Path))
		if f.Before != "" {
			fmt.Fprintln(p.err, "  - "+plain(f.Before))
		}
		if f.After != "" {
			fmt.Fprintln(p.err, "  + "+plain(f.After))
		}
	}
	if len(would.Fields) == 0 {
		_ = lines(p.err, would.Bytes)
	}
	for _, c := range would.Checks {
		fmt.Fprintln(p.err, "note: "+plain(c))
	}
	return would, nil
}

func (p *program) send(
	ctx context.Context, client httpapi.Client, r actions.EditRequest, done actions.Edited,
) (err error) {
	if !r.DryRun {
		if done, err = client.Edit(ctx, r); err != nil {
			return err
		}
	}
	return write(p, done, func(d actions.Edited) string { return d.New }, func(w io.Writer) {
		if !r.DryRun {
			fmt.Fprintf(w, "the edited message is %s, and is retried; the original is discarded\n", plain(done.New))
			return
		}
		fmt.Fprintln(w, "nothing is done yet")
		_ = lines(w, done.Bytes)
	})
}

// editByHand opens the editor until the result can be sent, the person declines, or nothing
// is changed.
func (p *program) editByHand(ctx context.Context, client httpapi.Client, r actions.EditRequest) error {
	if !p.yes && !r.DryRun && !isTerminal(p.in) {
		return fmt.Errorf("this is not a terminal, so it cannot ask: give --yes, --dry-run or --body-file: %w",
			errUsage)
	}
	text, suffix, document, err := editable(ctx, client, r.ID)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "redrive-edit-") // editors put copies beside the file: 0700
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "message"+suffix)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	for {
		if err := p.editor(file); err != nil {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		edited := string(data)
		if !strings.HasSuffix(text, "\n") { // which editors add
			edited = strings.TrimSuffix(edited, "\n")
		}
		if edited == text {
			fmt.Fprintln(p.err, "Nothing is changed, and nothing was sent.")
			return nil
		}
		if r.Document, r.Body = nil, nil; document {
			r.Document = &edited
		} else {
			body := []byte(edited)
			r.Body = &body
		}
		would, err := p.difference(ctx, client, r)
		if errors.Is(err, inspect.ErrInvalid) && isTerminal(p.in) && ctx.Err() == nil {
			fmt.Fprintln(p.err, plain(err.Error()))
			if again := p.prompt(ctx, "Edit it once more?"); again != nil {
				return again
			}
			continue
		}
		if err != nil {
			return err
		}
		if !r.DryRun {
			if err := p.confirm(ctx, "Replay it like that?"); err != nil {
				return err
			}
		}
		return p.send(ctx, client, r, would)
	}
}

// editable returns the text to edit: the decoded document, or a body that is plain text.
func editable(ctx context.Context, client httpapi.Client, id string) (text, suffix string, document bool, err error) {
	m, err := client.Message(ctx, id)
	if err != nil {
		return "", "", false, err
	}
	b := m.Body
	switch {
	case b == nil:
		err = exitErrorf(ExitPrecondition, "it was retried, and its body is not kept any more")
		return "", "", false, err
	case b.Truncated:
	case b.Format == "json" || b.Format == "protobuf" && b.Schema != "":
		return b.Text, ".json", true, nil
	case b.Masked != "":
		return "", "", false, exitErrorf(ExitPrecondition, "%s: you can edit its headers", b.Masked)
	case len(b.Steps) <= 1 && (b.Format == "text" || b.Format == "xml" || b.Format == "empty"):
		r, err := client.Body(ctx, id)
		if err != nil {
			return "", "", false, err
		}
		defer r.Close()
		if raw, err := io.ReadAll(r); err != nil || utf8.Valid(raw) {
			return string(raw), ".txt", false, err
		}
	}
	return "", "", false, exitErrorf(ExitPrecondition,
		"this body cannot be edited as text without changing other bytes: edit what `redrive messages show %s --body "+
			"raw` writes, and give it with --body-file", id)
}

// editor opens a file in the person's editor and waits for its end. The editor has the terminal, and
// handles Ctrl-C itself.
func (p *program) editor(file string) error {
	command := cmp.Or(p.getenv("VISUAL"), p.getenv("EDITOR"), "vi")
	var c *exec.Cmd
	if sh, err := exec.LookPath("sh"); err == nil { // "code --wait", as git takes it
		c = exec.Command(sh, "-c", command+` "$1"`, command, file)
	} else {
		words := strings.Fields(command)
		c = exec.Command(words[0], append(words[1:], file)...)
	}
	// Not data: what an editor draws must not get into a pipe.
	c.Stdin, c.Stdout, c.Stderr = p.in, p.err, p.err
	if err := c.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return fmt.Errorf("the editor %q ended with %s: nothing was sent", command, exit.ProcessState)
		}
		return hint.Errorf("set EDITOR, or give --body-file", "the editor %q: %w", command, err)
	}
	return nil
}
