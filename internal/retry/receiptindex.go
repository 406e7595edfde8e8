package retry

import (
	"container/list"
	"slices"

	"github.com/redrive-mq/redrive/internal/store"
)

// known holds the receipts that a dead letter may match, in bounded memory: of each
// process the newest that the store keeps, and of all queues together the newest that were
// given over this connection.
type known struct {
	byContent         map[content][]*receipt
	processes, queues recent
}

// recent holds the newest of each name, of the names that had one last: at most so many
// of a name, or of all names together, where those that have most lose their oldest.
type recent struct {
	of          map[string]*list.Element // of order, each a *series
	order       *list.List               // which had one last is first
	names       int
	most        int // of a name; 0: room is the bound
	room, count int // of all names
}

// series are the newest receipts of one name, oldest first, up to twice as many.
type series struct {
	name string
	all  []*receipt
}

func newRecent(names, most, room int) recent {
	return recent{of: map[string]*list.Element{}, order: list.New(), names: names, most: most, room: room}
}

// mostGiven bounds the receipts that were given over this connection, of all queues. What
// RabbitMQ's at-least-once worker has not had confirmed it publishes again also long after:
// it goes on with the other of its 32 places meanwhile, thousands of messages in 12 s.
// [measured on 4.3.6, a node of the cluster killed]
const mostGiven = 32_768

func newKnown() known {
	return known{
		byContent: map[content][]*receipt{},
		processes: newRecent(4*store.ReceiptsOwners, store.ReceiptsKept, 0),
		queues:    newRecent(512, 0, mostGiven),
	}
}

// add adds a receipt that is not known yet, and forgets those for which it is one too many.
func (n *known) add(to *recent, name string, k *receipt) {
	if n.byContent == nil {
		*n = newKnown()
	}
	c := contentOf(k.fingerprint)
	if slices.ContainsFunc(n.byContent[c], func(o *receipt) bool { return o.id == k.id && o.fingerprint == k.fingerprint }) {
		return
	}
	n.byContent[c] = append(n.byContent[c], k)
	for _, old := range to.push(name, k) {
		n.forget(old)
	}
}

func (n *known) forget(k *receipt) {
	c := contentOf(k.fingerprint)
	left := slices.DeleteFunc(n.byContent[c], func(o *receipt) bool { return o == k })
	if n.byContent[c] = left; len(left) == 0 {
		delete(n.byContent, c)
	}
}

// push adds one, and returns those that are too many.
func (n *recent) push(name string, k *receipt) (gone []*receipt) {
	at := n.of[name]
	if at == nil {
		if n.order.Len() == n.names {
			quiet := n.order.Remove(n.order.Back()).(*series)
			delete(n.of, quiet.name)
			gone = quiet.all
		}
		at = n.order.PushFront(&series{name: name})
		n.of[name] = at
	}
	n.order.MoveToFront(at)
	s := at.Value.(*series)
	s.all = append(s.all, k)
	n.count += 1 - len(gone)
	switch {
	case n.most > 0 && len(s.all) > 2*n.most:
		gone = append(gone, n.cut(s, n.most)...)
	case n.room > 0 && n.count > n.room:
		for e := n.order.Front(); e != nil; e = e.Next() {
			if other := e.Value.(*series); len(other.all) > len(s.all) {
				s = other
			}
		}
		gone = append(gone, n.cut(s, (len(s.all)+1)/2)...)
	}
	return gone
}

// cut takes the oldest of a series.
func (n *recent) cut(s *series, oldest int) (gone []*receipt) {
	gone, s.all = s.all[:oldest], slices.Clone(s.all[oldest:])
	n.count -= oldest
	return gone
}
