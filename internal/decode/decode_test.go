package decode

import "testing"

func decoder(t testing.TB, o Options) *Decoder {
	t.Helper()
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAWordIsNotBase64(t *testing.T) {
	for _, s := range []string{"password", "hello", "true", "0198f0a0c0de4abc8def0123456789ab"} {
		if r := decoder(t, Options{}).Decode(t.Context(), Body{Bytes: []byte(s)}); r.Format != "text" || r.Text != s {
			t.Errorf("%q became %q (%v)", s, r.Text, r.Steps)
		}
	}
}
