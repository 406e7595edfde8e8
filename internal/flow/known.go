package flow

import (
	"container/list"
	"slices"

	"github.com/redrive-mq/redrive/internal/store"
)

// known holds the receipts that a dead letter may match, in bounded memory: of each
// process the newest that the store keeps, and of each queue the newest that were given
// over this connection.
type known struct {
	byContent         map[content][]*receipt
	processes, queues recent
}

// recent holds at most the newest of each name, of the names that had one last.
type recent struct {
	of          map[string]*list.Element // of order, each a *series
	order       *list.List               // which had one last is first
	most, names int
}

// series are the newest receipts of one name, oldest first, up to twice as many.
type series struct {
	name string
	all  []*receipt
}

func newRecent(most, names int) recent {
	return recent{map[string]*list.Element{}, list.New(), most, names}
}

// unconfirmed is how many dead letters of a queue RabbitMQ's at-least-once worker
// publishes before the first is confirmed: those that it may publish again are among the
// newest of their queue, however many others have come since. (32; here with room for
// copies, and for what came by way of other replicas)
const unconfirmed = 4 * 32

func newKnown() known {
	return known{
		byContent: map[content][]*receipt{},
		processes: newRecent(store.ReceiptsKept, 4*store.ReceiptsOwners),
		queues:    newRecent(unconfirmed, 512),
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
	if s.all = append(s.all, k); len(s.all) > 2*n.most {
		gone = append(gone, s.all[:n.most]...)
		s.all = slices.Clone(s.all[n.most:])
	}
	return gone
}
