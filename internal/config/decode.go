package config

import (
	"fmt"
	"strconv"

	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-mq/redrive/internal/decode"
)

// protobuf reads where Protobuf types are, and which queues have which. decode.New reads the files.
func (d *document) protobuf(n ast.Node) (p decode.Protobuf) {
	const where = "decode.protobuf"
	fields := map[string]field{
		"files": func(n ast.Node) {
			p.Files = d.paths(n, where+".files", `a list of files, such as ["proto/order.proto"]`)
		},
		"import_paths": func(n ast.Node) {
			p.ImportPaths = d.paths(n, where+".import_paths", `a list of folders, such as ["proto"]`)
		},
		"descriptor_sets": func(n ast.Node) {
			p.DescriptorSets = d.paths(n, where+".descriptor_sets", `a list of files, such as ["shop.pb"]`)
		},
		"queues": func(n ast.Node) {
			d.each(d.sequence(n, where+".queues", "a list of queues with a message"), func(i int, item ast.Node) {
				p.Queues = append(p.Queues, d.queueType(item, fmt.Sprintf("%s.queues[%d]", where, i)))
			})
		},
		"header": func(n ast.Node) { p.Header = d.text(n, where+".header", "a header's name") },
		"type_property": func(n ast.Node) {
			var err error
			if p.TypeProperty, err = strconv.ParseBool(d.text(n, where+".type_property", "true or false")); err != nil {
				d.fail(n, "%s.type_property is %s; expected true or false", where, show(n))
			}
		},
	}
	d.all(
		func() { d.mapping(n, where, fields) },
		func() {
			if lacks(n, fields, "files", "descriptor_sets") {
				d.fail(n, "%s names neither files nor descriptor_sets, so there are no types", where)
			}
		},
		func() {
			if lacks(n, fields, "queues", "header", "type_property") {
				d.fail(n, "%s does not say which messages have which type; expected queues, header or type_property", where)
			}
		},
	)
	return p
}

func (d *document) paths(n ast.Node, where, expected string) []string {
	out := d.texts(n, where, expected)
	for i := range out {
		out[i] = d.path(out[i])
	}
	return out
}

func (d *document) queueType(n ast.Node, where string) (q decode.QueueType) {
	d.mapping(n, where, map[string]field{
		"queues": func(n ast.Node) {
			q.Queues = d.texts(n, where+".queues", `a list of queue names or patterns, such as ["orders.*"]`)
		},
		"message": func(n ast.Node) { q.Message = d.text(n, where+".message", "a message type") },
	})
	if len(q.Queues) == 0 || q.Message == "" {
		d.fail(n, "%s needs queues and a message, such as {queues: [\"orders.*\"], message: shop.Order}", where)
	}
	return q
}
