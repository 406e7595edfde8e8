package decode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Encode puts an edited document (Text, as Decode gave it) back through the very
// steps that Decode undid, and says in words what it checked. An unedited one gives
// the very same bytes.
func (d *Decoder) Encode(ctx context.Context, b Body, document string) ([]byte, []string, error) {
	r := d.read(ctx, b)
	switch {
	case r.result.Truncated:
		return nil, nil, errors.New("the body is shown only in part, so it cannot be edited here")
	case document == r.result.Text && r.encode != nil:
		return b.Bytes, []string{"nothing is changed"}, nil
	case r.encode == nil:
		return nil, nil, fmt.Errorf("a body that is %s cannot be edited as text", r.result.Format)
	}
	out, checks, err := r.encode(document)
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for _, l := range slices.Backward(r.layers) {
		if out, err = l.wrap(out); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", l.decoder, err)
		}
		names = append(names, l.decoder)
	}
	if len(names) > 0 {
		checks = append(checks, "inside of "+strings.Join(names, ", inside of ")+", as before")
	}
	// What is read by its looks must still look so.
	b.Bytes = out
	if now := d.Decode(ctx, b); now.Format != r.result.Format {
		checks = append(checks, fmt.Sprintf("it will be read as %s, no longer as %s", now.Format, r.result.Format))
	}
	return out, checks, nil
}
