package decode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/policy"
)

// Protobuf is which message types there are, and who has which. Files are chosen
// here and nowhere else; what a message says can only choose among their types.
type Protobuf struct {
	Files          []string // .proto
	ImportPaths    []string // where they and what they import are
	DescriptorSets []string // as protoc --include_imports --descriptor_set_out writes them
	Queues         []QueueType
	Header         string // the header that names a message's type, if any
	TypeProperty   bool   // the type property names it
}

// QueueType is the message type of what is in some queues; the first that matches counts.
type QueueType struct {
	Queues  []string // names or patterns
	Message string
}

// schemas is what was loaded.
type schemas struct {
	o     Protobuf
	files *protoregistry.Files
	types *dynamicpb.Types // nothing that is linked into the program
	// guessable are the types that a body may be of, by name: not Google's own and not the entries of maps.
	guessable []protoreflect.MessageDescriptor
}

func load(o Protobuf) (*schemas, error) {
	s := &schemas{o: o, files: new(protoregistry.Files)}
	if err := s.compile(); err != nil {
		return nil, err
	}
	for _, path := range o.DescriptorSets {
		if err := s.descriptorSet(path); err != nil {
			return nil, fmt.Errorf("descriptor set %s: %w", path, err)
		}
	}
	s.types = dynamicpb.NewTypes(s.files)
	s.files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(f.Package())+".", "google.protobuf.") {
			s.guessable = append(s.guessable, messagesIn(f.Messages())...)
		}
		return true
	})
	slices.SortFunc(s.guessable, func(a, b protoreflect.MessageDescriptor) int { return cmp.Compare(a.FullName(), b.FullName()) })
	for i, q := range o.Queues {
		if _, err := s.find(q.Message); err != nil {
			return nil, fmt.Errorf("decode.protobuf.queues[%d].message is %q, %w", i, q.Message, err)
		}
	}
	return s, nil
}

// messagesIn lists messages and those that are declared in them.
func messagesIn(list protoreflect.MessageDescriptors) (all []protoreflect.MessageDescriptor) {
	for i := range list.Len() {
		if m := list.Get(i); !m.IsMapEntry() {
			all = append(append(all, m), messagesIn(m.Messages())...)
		}
	}
	return all
}

// compile reads the .proto files. Each is named by its path from an import path, as
// others import it; its own folder is the import path of one that is in none.
func (s *schemas) compile() error {
	paths, names := slices.Clone(s.o.ImportPaths), []string{}
	for _, file := range s.o.Files {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("decode.protobuf.files: %w", err)
		}
		name := ""
		for _, p := range paths {
			if rel, err := filepath.Rel(p, file); err == nil && filepath.IsLocal(rel) {
				name = rel
				break
			}
		}
		if name == "" {
			paths, name = append(paths, filepath.Dir(file)), filepath.Base(file)
		}
		names = append(names, filepath.ToSlash(name))
	}
	if len(names) == 0 {
		return nil
	}
	below := &protocompile.SourceResolver{ImportPaths: paths}
	c := protocompile.Compiler{MaxParallelism: 1, Resolver: protocompile.WithStandardImports(protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
		if !filepath.IsLocal(path) { // schemas come from elsewhere, too
			return protocompile.SearchResult{}, hint.Errorf("name a path below one of them", "the import %.200q leads out of decode.protobuf.import_paths", path)
		}
		return below.FindFileByPath(path)
	}))}
	files, err := c.Compile(context.Background(), names...)
	if err != nil {
		return fmt.Errorf("decode.protobuf.files: %w", err)
	}
	for _, f := range files {
		if err := s.register(f); err != nil {
			return fmt.Errorf("decode.protobuf.files: %w", err)
		}
	}
	return nil
}

// register also takes what a file imports: it is what Any may hold.
func (s *schemas) register(f protoreflect.FileDescriptor) error {
	if _, err := s.files.FindFileByPath(f.Path()); err == nil {
		return nil
	}
	imports := f.Imports()
	for i := range imports.Len() {
		if in := imports.Get(i).FileDescriptor; !in.IsPlaceholder() {
			if err := s.register(in); err != nil {
				return err
			}
		}
	}
	if l, ok := f.(linker.File); ok {
		f = l // with its imports resolved
	}
	return s.files.RegisterFile(f)
}

func (s *schemas) descriptorSet(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(data, &set); err != nil {
		return errors.New("it is no descriptor set, as protoc --include_imports --descriptor_set_out writes it")
	}
	if len(set.File) == 0 {
		return errors.New("it holds no file")
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return fmt.Errorf("%w (was it made with protoc --include_imports?)", err)
	}
	files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		err = s.register(f)
		return err == nil
	})
	return err
}

func (s *schemas) find(name string) (protoreflect.MessageDescriptor, error) {
	name = strings.TrimPrefix(name, ".")
	if d, err := s.files.FindDescriptorByName(protoreflect.FullName(name)); err == nil {
		if m, ok := d.(protoreflect.MessageDescriptor); ok {
			return m, nil
		}
	}
	return nil, errors.New("which is no message type of the files that are loaded")
}

// choose says which type a message has, and by what rule: what the message itself
// says goes before what is said of its queue. why is when it says something unknown.
func (s *schemas) choose(b Body) (m protoreflect.MessageDescriptor, rule, why string) {
	try := func(name, by string) bool {
		found, err := s.find(name)
		if err != nil {
			why = fmt.Sprintf("%s names %.100q, %v", by, shown(name), err)
			return false
		}
		m, rule = found, by
		return true
	}
	if b.As != "" && try(b.As, "a person") {
		return m, rule, ""
	}
	if s.o.Header != "" {
		switch name := b.Headers[s.o.Header].(type) {
		case string:
			if try(name, "the header "+s.o.Header) {
				return m, rule, ""
			}
		case []byte:
			if try(string(name), "the header "+s.o.Header) {
				return m, rule, ""
			}
		}
	}
	if s.o.TypeProperty && b.Type != "" && try(b.Type, "the type property") {
		return m, rule, ""
	}
	for _, q := range s.o.Queues {
		for _, pattern := range q.Queues {
			if policy.MatchQueue(pattern, b.Queue) && try(q.Message, "the queue") {
				return m, rule, why
			}
		}
	}
	return nil, "", why
}

// Knows returns an error when there is no Protobuf message type of that name.
func (d *Decoder) Knows(name string) error {
	if _, err := d.schemas.Load().find(name); err != nil {
		return hint.Errorf("name one of the files of decode.protobuf, with its package", "Protobuf type %.100q: %w", shown(name), err)
	}
	return nil
}

func (s *schemas) chosen(b Body) bool { m, _, _ := s.choose(b); return m != nil }
