package webui_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
)

// fields are what a browser sends of the page's edit form, but for its buttons.
func fields(t *testing.T, page string) url.Values {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{}
	for n := range doc.Descendants() {
		attr := map[string]string{}
		for _, a := range n.Attr {
			attr[a.Key] = a.Val
		}
		switch {
		case attr["name"] == "" || attr["type"] == "checkbox" || attr["type"] == "radio":
		case n.Data == "input":
			form.Add(attr["name"], attr["value"])
		case n.Data == "textarea" && n.FirstChild != nil:
			form.Add(attr["name"], strings.TrimPrefix(n.FirstChild.Data, "\n"))
		}
	}
	return form
}

// What the preview shows is what is sent: also headers that the form adds.
func TestHeadersAddedInTheFormAreSent(t *testing.T) {
	shop := webtest.New(time.Now())
	h := scene{shop: shop, caller: auth.Caller{Name: "dana", Role: auth.Admin}}.handler()
	edit := "/messages/" + shop.Messages[0].ID + "/edit"
	form := fields(t, get(h, edit).Body.String())
	form["new.name"], form["new.value"] = []string{"retried-by"}, []string{"dana"}
	for range 2 { // one more each time that the difference is shown
		form = fields(t, send(h, edit, form).Body.String())
		form["new.name"][len(form["new.name"])-1], form["new.value"][len(form["new.value"])-1] = "ticket", "7"
	}
	form.Set("send", "1")
	if w := send(h, edit, form); w.Code != 303 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	sent, _ := shop.Asked[len(shop.Asked)-1].(actions.EditRequest)
	if sent.DryRun || sent.SetHeaders["retried-by"] != "dana" || sent.SetHeaders["ticket"] != "7" {
		t.Errorf("sent: %+v", sent)
	}
}
