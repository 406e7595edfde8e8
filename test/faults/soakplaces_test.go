package faults_test

import (
	"encoding/json"
	"slices"
	"testing"
)

// place is where connections are cut: when so many bytes have passed one way since a message
// was published, of all connections together, or of each.
type place struct {
	toServer bool
	bytes    int64
}

// places are those where connections are cut, in an order in which any number of them is
// spread over all. Those that were done before are left out.
type places struct {
	toServer, toClient int64
	// connections is, where each is cut, how many bytes pass of each until the service has
	// connected, by whether they go to the server. At a place all that are longer are cut, and where
	// none is, those on which the message is.
	connections map[bool][]int64
	done        *placeSet
	at          int // in the order
	taken       int
}

func (p *places) size() int { return int(p.toServer + p.toClient) }

// next is false when all are taken.
func (p *places) next() (place, bool) {
	for p.at < p.size() {
		at := int64(spread(p.at, p.size()))
		p.at++
		next := place{at < p.toServer, at}
		if !next.toServer {
			next.bytes -= p.toServer
		}
		if !p.done.has(next) {
			p.taken++
			return next, true
		}
	}
	return place{}, false
}

// cutsAt is how many connections are cut at a place.
func (p *places) cutsAt(at place) (n int) {
	for _, bytes := range p.connections[at.toServer] {
		if bytes > at.bytes {
			n++
		}
	}
	return max(1, n)
}

// count is how many cuts there are at all of them, and how many were done before.
func (p *places) count() (all, done int) {
	for _, way := range []struct {
		toServer bool
		bytes    int64
	}{{true, p.toServer}, {false, p.toClient}} {
		for at := range way.bytes {
			at := place{way.toServer, at}
			if all += p.cutsAt(at); p.done.has(at) {
				done += p.cutsAt(at)
			}
		}
	}
	return all, done
}

// spread is the i-th of the numbers from 0 to all, in an order in which the first of any amount are
// spread over all; then they begin again.
func spread(i, all int) int {
	step := all*618/1000 + 1
	for gcd(step, all) != 1 {
		step++
	}
	return i * step % all
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// placeSet has the places where runs have cut, a bit for each. A message's way is some bytes
// longer or shorter each time, as numbers have more digits, and differs more with another commit:
// how many places were taken would not say which ones. A run measures the way as it is now, and
// cuts where none before it has; of those that did, what is beyond the end does not count.
type placeSet struct {
	ToServer []byte `json:"to_server"`
	ToClient []byte `json:"to_client"`
}

func (s *placeSet) way(at place) *[]byte {
	if at.toServer {
		return &s.ToServer
	}
	return &s.ToClient
}

func (s *placeSet) has(at place) bool {
	bits := *s.way(at)
	i := int(at.bytes / 8)
	return i < len(bits) && bits[i]&(1<<(at.bytes%8)) != 0
}

func (s *placeSet) add(at place) {
	bits := s.way(at)
	for i := int(at.bytes / 8); i >= len(*bits); {
		*bits = append(*bits, 0)
	}
	(*bits)[at.bytes/8] |= 1 << (at.bytes % 8)
}

// Each place is taken once, and some of them are spread over all.
func TestEachPlaceIsTakenOnce(t *testing.T) {
	for _, all := range []places{{toServer: 3, toClient: 4}, {toServer: 700, toClient: 300}, {toServer: 1, toClient: 0}, {toServer: 1021, toClient: 2}} {
		all.done = &placeSet{}
		seen, size := map[place]bool{}, all.size()
		for at, more := all.next(); more; at, more = all.next() {
			if limit := map[bool]int64{true: all.toServer, false: all.toClient}[at.toServer]; at.bytes < 0 || at.bytes >= limit {
				t.Errorf("%+v is none of %+v", at, all)
			}
			if seen[at] {
				t.Errorf("%+v was taken twice", at)
			}
			seen[at] = true
			if len(seen) == 10 && size == 1000 {
				parts := map[int64]bool{}
				for at := range seen {
					if !at.toServer {
						at.bytes += all.toServer
					}
					parts[at.bytes/125] = true
				}
				if len(parts) < 7 {
					t.Errorf("the first ten of 1,000 places are in %d of 8 parts", len(parts))
				}
			}
		}
		if len(seen) != size {
			t.Errorf("%d of %d places were taken", len(seen), size)
		}
	}
}

// A run goes on where those before it ended, though the way it measures is a little longer, or
// shorter: each place is cut once, and each is in the end.
func TestPlacesGoOnFromRunToRun(t *testing.T) {
	type way struct{ toServer, toClient int64 }
	const each = 90
	done, cuts := &placeSet{}, map[place]int{}
	last := way{505, 298}
	var todo places
	for run, way := range append(slices.Repeat([]way{{500, 300}, {503, 296}, {498, 301}}, 4), last) {
		todo = places{toServer: way.toServer, toClient: way.toClient, done: done}
		_, before := todo.count()
		for at, more := todo.next(); more; at, more = todo.next() {
			cuts[at]++
			done.add(at)
			if todo.taken == each && way != last {
				break
			}
		}
		if all, is := todo.count(); is != before+todo.taken {
			t.Errorf("run %d: %d of %d were done, and then %d, after %d more", run, before, all, is, todo.taken)
		}
		// As in the file.
		data, err := json.Marshal(done)
		must(t, err)
		done = &placeSet{}
		must(t, json.Unmarshal(data, done))
	}
	if all, n := todo.count(); n != all {
		t.Errorf("%d of %d places are done in the end", n, all)
	}
	for at, n := range cuts {
		if n > 1 {
			t.Errorf("%+v was cut %d times", at, n)
		}
	}
}

// Where each connection is cut, a place counts for all that are longer, and for one at least.
func TestAPlaceCountsForEachConnection(t *testing.T) {
	p := places{toServer: 5, toClient: 3, connections: map[bool][]int64{true: {4, 2}, false: {1}}, done: &placeSet{}}
	p.done.add(place{true, 1})
	p.done.add(place{true, 4})
	p.done.add(place{false, 2})
	if all, done := p.count(); all != 4+2+1+3 || done != 2+1+1 {
		t.Errorf("%d of %d cuts were done", done, all)
	}
}
