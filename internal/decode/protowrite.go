package decode

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// write makes a message of an edited document, as protojson does. It has no word for fields
// that the type does not know: those of the message itself are written back, and a
// document with such fields further in, or with an Any whose type is not loaded, is
// refused rather than written without them.
func (s *schemas) write(m protoreflect.MessageDescriptor, document []byte, b *budget) ([]byte, error) {
	v, err := parseJSON(document, b)
	if err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	var unknown []byte
	if i := slices.IndexFunc(v.keys, func(k key) bool { return k.text == keyUnknown }); i >= 0 {
		if unknown, err = unknownFields(&v.items[i]); err != nil {
			return nil, err
		}
		v.keys, v.items = slices.Delete(v.keys, i, i+1), slices.Delete(v.items, i, i+1)
		p := printer{}
		p.value(v, 0)
		document = p.b
	}
	msg := dynamicpb.NewMessage(m)
	if err := (protojson.UnmarshalOptions{Resolver: s.types, RecursionLimit: mostNesting}).Unmarshal(document, msg); err != nil {
		return nil, protoError(err)
	}
	msg.SetUnknown(unknown)
	return proto.MarshalOptions{Deterministic: true}.Marshal(msg)
}

// unknownFields reads what a document has under keyUnknown.
func unknownFields(v *value) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(v.text)
	for rest := b; err == nil && len(rest) > 0; {
		_, _, n := protowire.ConsumeField(rest)
		if err = protowire.ParseError(min(n, 0)); err == nil {
			rest = rest[n:]
		}
	}
	if err != nil || v.kind != text {
		return nil, errors.New(keyUnknown + " is not fields of Protobuf in base64")
	}
	return b, nil
}

// protoError is an error of the library in one way of writing: it changes its spaces from
// build to build.
func protoError(err error) error {
	return errors.New(strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto:")))
}
