package webui

import (
	"bytes"
	"fmt"
	"html/template"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	tables "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"

	"github.com/redrive-mq/redrive/docs"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// doc is a page of the documentation.
type doc struct {
	Title string
	Index bool
	HTML  template.HTML
}

func (s *server) docs(r *http.Request, _ auth.Caller) (view, error) {
	name := r.PathValue("page")
	if name == "" {
		name = "README.md"
	}
	source, err := fs.ReadFile(docs.Files, name)
	if err != nil || path.Ext(name) != ".md" {
		return view{}, inspect.ErrNotFound
	}
	d, err := s.document(name, source)
	return view{template: "docs", title: d.Title, data: d}, err
}

func (s *server) docsImage(w http.ResponseWriter, r *http.Request) {
	c := s.Caller(r)
	if c.Role == auth.NoRole {
		s.askToSignIn(w, r)
		return
	}
	name := r.PathValue("name")
	data, err := fs.ReadFile(docs.Files, path.Join("images", name))
	if err != nil {
		s.render(w, r, c, errorView(inspect.ErrNotFound))
		return
	}
	w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	_, _ = w.Write(data)
}

var markdown = goldmark.New(
	goldmark.WithExtensions(extension.NewTable(
		extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute))), // the CSP allows no style
	goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(boxes{}, 0))))

// document renders a page of docs/, without the HTML that is in it.
func (s *server) document(name string, source []byte) (doc, error) {
	root := markdown.Parser().Parse(text.NewReader(source))
	d := doc{Title: "Documentation", Index: name == "README.md"}
	ids, last := map[string]int{}, ""
	var nodes []ast.Node
	_ = ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			nodes = append(nodes, n)
		}
		return ast.WalkContinue, nil
	})
	for _, n := range nodes {
		switch n := n.(type) {
		case *ast.HTMLBlock, *ast.RawHTML:
			n.Parent().RemoveChild(n.Parent(), n)
		case *ast.Heading:
			title := textOf(n, source)
			if n.Level == 1 {
				d.Title = title
			}
			last = anchor(title)
			if ids[last]++; ids[last] > 1 {
				last = fmt.Sprintf("%s-%d", last, ids[last]-1)
			}
			n.SetAttributeString("id", []byte(last))
		case *tables.TableCell:
			if n.Parent().Kind() == tables.KindTableHeader && !n.HasChildren() {
				n.SetAttributeString("role", []byte("presentation"))
			}
		case *tables.Table:
			n.SetAttributeString("aria-labelledby", []byte(last))
		case *ast.Image:
			n.Destination = []byte(s.at(path.Join("/docs", path.Dir(name), string(n.Destination))))
		case *ast.Link:
			s.lead(n, name, source)
		}
	}
	var b bytes.Buffer
	err := markdown.Renderer().Render(&b, source, root)
	d.HTML = template.HTML(b.String()) // goldmark escapes what is text
	return d, err
}

// lead makes a link lead to what is served, and else be a text with the path of its file.
func (s *server) lead(n *ast.Link, from string, source []byte) {
	to, fragment, _ := strings.Cut(string(n.Destination), "#")
	if to == "" || strings.Contains(to, ":") {
		return
	}
	to = path.Join("docs", path.Dir(from), to)
	served := "/" + to
	file, in := strings.CutPrefix(to, "docs/")
	if _, err := fs.Stat(docs.Files, file); file == "reference/openapi.json" {
		served = "/api/v1/openapi.json"
	} else if !in || err != nil {
		if textOf(n, source) != to {
			n.Parent().InsertAfter(n.Parent(), n, ast.NewString([]byte(" ("+to+")")))
		}
		for c := n.FirstChild(); c != nil; c = n.FirstChild() {
			n.Parent().InsertBefore(n.Parent(), n, c)
		}
		n.Parent().RemoveChild(n.Parent(), n)
		return
	}
	if fragment != "" {
		served += "#" + fragment
	}
	n.Destination = []byte(s.at(served))
}

var notOfAnchors = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

// anchor is the fragment that GitHub gives a heading.
func anchor(title string) string {
	return strings.ReplaceAll(notOfAnchors.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
}

func textOf(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// boxes renders what is wide as the page's other boxes that scroll.
type boxes struct{}

func (boxes) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(tables.KindTable, func(w util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			label, _ := n.AttributeString("aria-labelledby")
			fmt.Fprintf(w, `<div class="scroll" role="group" aria-labelledby="%s" tabindex="0"><table>`+"\n", label)
		} else {
			_, _ = w.WriteString("</table></div>\n")
		}
		return ast.WalkContinue, nil
	})
	code := func(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			fmt.Fprintf(w, `<pre class="content" tabindex="0"><code>%s</code></pre>`+"\n",
				util.EscapeHTML(n.Lines().Value(source)))
		}
		return ast.WalkContinue, nil
	}
	r.Register(ast.KindCodeBlock, code)
	r.Register(ast.KindFencedCodeBlock, code)
}
