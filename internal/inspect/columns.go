package inspect

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/query"
)

// Column is one column of a list for people: a field of T, or else what Value returns.
type Column[T any] struct {
	Head  string // "": the field's name
	Field string
	Value func(T) any
	Help  string // on the page: what the heading means
	// Narrow says what happens where a terminal is too narrow: 0 stays, of the others the highest goes first.
	Narrow int
	Rare   bool // a list leaves it out if it is "" in all rows
}

// Below is the Narrow of a column with long text: it goes first, to a line of its own below the row.
const Below = math.MaxInt

// Ahead is shown as the time left, or how long ago it was.
type Ahead struct{ *time.Time }

// Of returns the column's value: a text, a number, a time, or an Ahead. Nil: not known.
func (c Column[T]) Of(v T) any {
	if c.Value != nil {
		return c.Value(v)
	}
	f := reflect.ValueOf(v).FieldByName(c.Field)
	if n, ok := f.Interface().(*int); ok && n == nil {
		return nil
	} else if ok {
		return *n
	}
	return f.Interface()
}

// CSV returns the columns of a list of T, and a value's row of them: the fields that fit into a cell, named as in
// JSON, but for those that are tagged csv:"-", and the fields of those that are tagged csv:"+". What a spreadsheet
// would take for a formula is made text: whoever publishes a message must not run commands on the machine of whoever
// opens the table.
func CSV[T any]() (names []string, row func(T) []string) {
	var at [][]int
	var add func(of reflect.Type, index []int)
	add = func(of reflect.Type, index []int) {
		for _, f := range reflect.VisibleFields(of) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch here := slices.Concat(index, f.Index); {
			case f.Tag.Get("csv") == "+":
				add(f.Type.Elem(), here)
			case name != "" && name != "-" && f.Tag.Get("csv") != "-" && isCell(f.Type):
				names, at = append(names, name), append(at, here)
			}
		}
	}
	add(reflect.TypeFor[T](), nil)
	return names, func(v T) []string {
		row, whole := make([]string, len(at)), reflect.ValueOf(v)
		for i, index := range at {
			f, err := whole.FieldByIndexErr(index)
			if err != nil { // of a nil pointer
				continue
			}
			x := f.Interface()
			if v := reflect.ValueOf(x); v.Kind() == reflect.Pointer {
				if v.IsNil() {
					continue
				}
				x = v.Elem().Interface()
			}
			if t, ok := x.(time.Time); ok {
				x = t.UTC().Format(time.RFC3339)
			}
			row[i] = csvCell(fmt.Sprint(x))
		}
		return row
	}
}

// ChosenCSV returns the columns that were chosen, and a message's row of them, as CSV does.
func ChosenCSV(chosen []query.Column) (names []string, row func(Message) []string) {
	for _, c := range chosen {
		names = append(names, csvCell(c.Name))
	}
	return names, func(m Message) (row []string) {
		for _, c := range chosen {
			row = append(row, csvCell(m.Columns[c.Name]))
		}
		return row
	}
}

func isCell(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
		return true
	}
	return t == reflect.TypeFor[time.Time]() || t == reflect.TypeFor[*time.Time]() || t == reflect.TypeFor[*int]()
}

// innerFormula finds a formula behind what separates cells for spreadsheets of other
// countries: they do not know where a quoted cell ends.
var innerFormula = regexp.MustCompile(`([;\t\r\n])([\s"']*)([=+\-@|%＝＋－＠])`)

// csvCell puts an apostrophe before what a spreadsheet may compute, also behind
// blanks, which some of them skip, and takes NUL bytes out, which some end at.
func csvCell(cell string) string {
	cell = strings.ReplaceAll(cell, "\x00", "")
	cell = innerFormula.ReplaceAllString(cell, "$1$2'$3")
	switch bare := strings.TrimLeft(cell, " \t\r\n\v\f\u00a0\ufeff"); {
	case bare != cell && bare == "", bare != "" && strings.ContainsRune("=+-@|%＝＋－＠", []rune(bare)[0]),
		strings.IndexAny(cell, "\t\r\n") == 0:
		return "'" + cell
	}
	return cell
}
