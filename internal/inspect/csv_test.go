package inspect_test

import (
	"bytes"
	"encoding/csv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/inspect"
)

func TestTablesRunNoFormulas(t *testing.T) {
	for _, cell := range []string{"=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "\n=1", "\u00a0=cmd|' /C calc'!A0", "＝1", "|x", "%0A", "\x00=1", "\ufeff=1", "\tx"} {
		row := inspect.CSVRow(inspect.Message{ID: uuid.NewString(), Queue: cell, Error: cell, ParkedFor: cell})
		if len(row) != len(inspect.CSVHeader) {
			t.Fatalf("%d cells under %d names", len(row), len(inspect.CSVHeader))
		}
		var out bytes.Buffer
		w := csv.NewWriter(&out)
		if err := w.Write(row); err != nil {
			t.Fatal(err)
		}
		w.Flush()
		got, err := csv.NewReader(&out).Read()
		if err != nil || !strings.HasPrefix(got[1], "'") || !strings.HasPrefix(got[6], "'") || !strings.HasPrefix(got[8], "'") {
			t.Errorf("%q becomes %q, %v", cell, got, err)
		}
	}
	if row := inspect.CSVRow(inspect.Message{Queue: "orders", Error: "a=b, 5-3"}); row[1] != "orders" || row[8] != "a=b, 5-3" {
		t.Errorf("harmless cells become %q", row)
	}
}
