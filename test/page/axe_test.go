package page_test

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/chromedp/chromedp"
)

// axe-core, as its npm package has it: see axe.LICENSE.
//
//go:embed testdata/axe.min.js
var axeCore string

// violation is one rule of axe-core that a page breaks.
type violation struct {
	ID    string `json:"id"`
	Help  string `json:"help"`
	Nodes []struct {
		HTML           string `json:"html"`
		FailureSummary string `json:"failureSummary"`
	} `json:"nodes"`
}

// axe fails the test for each violation of the page as it is.
func (b *tab) axe(state string, rules ...string) {
	b.t.Helper()
	b.axeOf("document", state, rules...)
}

// frameAgain is axe for a page that was looked at already, where only what is around
// its content has changed.
func (b *tab) frameAgain(state string) {
	b.t.Helper()
	b.axeOf(`{exclude: ["main"]}`, state)
}

func (b *tab) axeOf(part, state string, rules ...string) {
	b.t.Helper()
	only := `{type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}`
	if len(rules) > 0 {
		list, _ := json.Marshal(rules)
		only = fmt.Sprintf(`{type: "rule", values: %s}`, list)
	}
	if !js[bool](b, `"axe" in window`) {
		b.run(chromedp.Evaluate[chromedp.Void](axeCore))
	}
	found := js[[]violation](b, `axe.run(`+part+`, {resultTypes: ["violations"], runOnly: `+only+`}).then(r => r.violations)`)
	for _, v := range found {
		var where []string
		for _, n := range v.Nodes[:min(3, len(v.Nodes))] {
			where = append(where, fmt.Sprintf("    %.300s\n    %s", n.HTML, strings.ReplaceAll(n.FailureSummary, "\n", "\n    ")))
		}
		b.t.Errorf("%s: axe %s: %s (%d times)\n%s", state, v.ID, v.Help, len(v.Nodes), strings.Join(where, "\n"))
	}
}

// look holds the page, as it is now, to all that each page has to be: for axe-core
// in the light and in the dark, where only colours differ, and without scrolling
// sideways at 400 % zoom of a window of 1280 pixels.
func (b *tab) look(state string) {
	b.t.Helper()
	b.axe(state)
	b.scheme("dark")
	b.axe(state+", dark", "color-contrast")
	b.scheme("light")
	b.size(320, 256)
	js[bool](b, `new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(() => drawn(true))))`)
	if wide := js[int](b, `document.documentElement.scrollWidth`); wide > 320 {
		widest := js[string](b, `[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, pre, .unseen, .skip")).slice(0, 5).map(e => e.outerHTML.slice(0, 160)).join("\n")`)
		b.t.Errorf("%s: at 400 %% zoom the page scrolls sideways: it is %d pixels wide, because of\n%s", state, wide, widest)
	}
	b.size(1280, 900)
}

// lookAt opens a page and looks.
func (b *tab) lookAt(state, path string) {
	b.t.Helper()
	b.open(path)
	b.look(state + " " + path)
}
