package cli

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
)

// mostBody is the largest message that RabbitMQ can be set to accept.
const mostBody = 512 << 20

func (p *program) decode() *cobra.Command {
	var b decode.Body
	c := &cobra.Command{
		Use:   "decode [FILE|-]",
		Short: "Show what a body contains: base64, compression, JSON, Protobuf and more",
		Long: `Show what a body contains, as the page does: from a file, or from standard input.
First come the steps, each with what it found, then the text.

Output: table; json, everything that is known; raw, the innermost bytes as they are; hex.

Protobuf is read with the types that the config file names (decode.protobuf): with the one of
the queue, header or property, or of --type; otherwise with the type that it fits best, which
is a guess and says so.`,
		Args: argsBetween(0, 1, "one file, or - for standard input"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg := config.Default()
			if p.config != "" {
				var err error
				if cfg, err = config.Load(p.config, p.getenv); err != nil {
					return err
				}
			}
			// A type that is given here is to be used.
			cfg.Decode.Protobuf.TypeProperty = cfg.Decode.Protobuf.TypeProperty || b.Type != ""
			d, err := decode.New(cfg.Decode)
			if err != nil {
				return err
			}
			if b.Bytes, err = readBody(c.InOrStdin(), args); err != nil {
				return err
			}
			b.Guess = true
			return p.decoded(d.Decode(c.Context(), b))
		},
	}
	p.withConfig(c, "the config file, for its decode.protobuf")
	c.Flags().StringVar(&b.ContentType, "content-type", "", "as the message has it")
	c.Flags().StringVar(&b.ContentEncoding, "content-encoding", "", "as the message has it")
	c.Flags().StringVar(&b.Queue, "queue", "", "the queue it was in, which may choose a Protobuf type")
	c.Flags().StringVar(&b.Type, "type", "", "its property type, which may name a Protobuf type")
	c.Flags().BoolVar(&b.Defaults, "defaults", false, "show the fields of Protobuf that are not set, with their defaults")
	return p.withFormats(c, "table", "json", "raw", "hex")
}

func readBody(stdin io.Reader, args []string) ([]byte, error) {
	from := stdin
	if len(args) == 1 && args[0] != "-" {
		f, err := os.Open(args[0])
		if err != nil {
			return nil, fmt.Errorf("the body: %w", err)
		}
		defer f.Close()
		from = f
	}
	b, err := io.ReadAll(io.LimitReader(from, mostBody+1))
	if err == nil && len(b) > mostBody {
		err = fmt.Errorf("it is larger than %d MiB, the most that RabbitMQ accepts", mostBody>>20)
	}
	if err != nil {
		return nil, fmt.Errorf("the body: %w", err)
	}
	return b, nil
}

func (p *program) decoded(r *decode.Result) error {
	switch p.format {
	case "json":
		return p.print(jsonOf(r, "  "))
	case "raw":
		if err := p.notRaw(); err != nil {
			return err
		}
		_, err := p.out.Write(r.Inner)
		return err
	case "hex":
		return p.print(hex.Dump(r.Inner), nil)
	}
	return p.steps(r)
}

// steps shows the steps of decoding, and then the text.
func (p *program) steps(r *decode.Result) error {
	w := p.tableOn(p.out)
	fmt.Fprintln(w, "DECODER\tSIZE\tFOUND")
	for _, s := range r.Steps {
		fmt.Fprintf(w, "%s\t%d\t%s\n", s.Decoder, s.Size, plain(s.Found))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.Truncated {
		fmt.Fprintln(p.err, "what follows is shortened")
	}
	fmt.Fprintln(p.out)
	return lines(p.out, cmp.Or(r.Text, r.Hex))
}

// notRaw refuses to send raw bytes to a terminal.
func (p *program) notRaw() error {
	if isTerminal(p.out) {
		return errors.New("raw bytes can contain control sequences: send them to a file or another program")
	}
	return nil
}
