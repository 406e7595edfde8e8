package inspect_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// Protobuf whose type nothing names is shown by the type that it fits, to people only; a person names
// another, and sees defaults.
func TestBodiesAreReadAsAPersonSays(t *testing.T) {
	d, err := decode.New(decode.Options{Protobuf: decode.Protobuf{Files: []string{"../decode/testdata/shop/order.proto"}, ImportPaths: []string{"../decode/testdata"}}})
	if err != nil {
		t.Fatal(err)
	}
	s := memstore.New()
	c := inspect.New(inspect.Config{Store: s, Decoder: d})
	r := record("orders", store.Parked, "x")
	r.Message.Body, r.Message.ContentType = []byte("\x0a\x03Ada"), "application/protobuf"
	if err := s.Add(ctx, []*store.Record{r}); err != nil {
		t.Fatal(err)
	}
	by := caller(auth.Viewer)
	for _, c1 := range []struct {
		as           inspect.ReadAs
		text, schema string
		like         []string
	}{
		{inspect.ReadAs{}, `{"name": "Ada"}`, "", []string{"shop.Customer", "shop.Item"}},
		{inspect.ReadAs{Type: "shop.Item"}, `{"name": "Ada"}`, "shop.Item (by a person)", nil},
		{inspect.ReadAs{Type: "shop.Item", Defaults: true}, `{"name": "Ada","price_cents": 0}`, "shop.Item (by a person)", nil},
	} {
		m, err := c.Message(ctx, by, r.ID.String(), c1.as)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("\n", "", "  ", "").Replace(m.Body.Text)
		if text != c1.text || m.Body.Schema != c1.schema || !slices.Equal(m.Body.LooksLike, c1.like) {
			t.Errorf("%+v: %s, %q, like %q", c1.as, text, m.Body.Schema, m.Body.LooksLike)
		}
	}
	if _, err := c.Message(ctx, by, r.ID.String(), inspect.ReadAs{Type: "shop.No"}); !errors.Is(err, inspect.ErrInvalid) || !strings.Contains(err.Error(), `"shop.No"`) {
		t.Errorf("an unknown type: %v", err)
	}
	// Queries see field numbers: what they choose must not hang on a guess.
	for query, want := range map[string]int64{"body.name:Ada": 0, "body.1:Ada": 1} {
		if n, _, err := c.Count(ctx, by, query, 0); err != nil || n != want {
			t.Errorf("%s finds %d, %v", query, n, err)
		}
	}
}
