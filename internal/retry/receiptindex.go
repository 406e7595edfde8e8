package retry

import (
	"container/list"
	"slices"

	"github.com/redrive-mq/redrive/internal/store"
)

// receiptIndex holds the receipts that a dead letter may match, in bounded memory: of each
// process the newest that the store keeps, and of all queues together the newest that were
// given over this connection.
type receiptIndex struct {
	byContent         map[content][]*receipt
	processes, queues recentReceipts
}

// recentReceipts holds the newest receipts of each name, and forgets the name whose latest is
// oldest. It keeps `most` of a name; or, where most is 0, `room` of all names together, of
// which the name with the most loses its oldest.
type recentReceipts struct {
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

func newRecentReceipts(names, most, room int) recentReceipts {
	return recentReceipts{of: map[string]*list.Element{}, order: list.New(), names: names, most: most, room: room}
}

// maxGiven bounds the receipts that were given over this connection, of all queues. What
// RabbitMQ's at-least-once worker has not had confirmed it publishes again also long after:
// it goes on with the other of its 32 places meanwhile, thousands of messages in 12 s.
// [measured on 4.3.6, a node of the cluster killed]
const maxGiven = 32_768

func newReceiptIndex() receiptIndex {
	return receiptIndex{
		byContent: map[content][]*receipt{},
		processes: newRecentReceipts(4*store.ReceiptsOwners, store.ReceiptsKept, 0),
		queues:    newRecentReceipts(512, 0, maxGiven),
	}
}

// add adds a receipt that is not known yet, and forgets those for which it is one too many.
func (x *receiptIndex) add(to *recentReceipts, name string, k *receipt) {
	if x.byContent == nil {
		*x = newReceiptIndex()
	}
	c := contentOf(k.fingerprint)
	if slices.ContainsFunc(x.byContent[c], func(o *receipt) bool { return o.id == k.id && o.fingerprint == k.fingerprint }) {
		return
	}
	x.byContent[c] = append(x.byContent[c], k)
	for _, old := range to.push(name, k) {
		x.forget(old)
	}
}

func (x *receiptIndex) forget(k *receipt) {
	c := contentOf(k.fingerprint)
	left := slices.DeleteFunc(x.byContent[c], func(o *receipt) bool { return o == k })
	if x.byContent[c] = left; len(left) == 0 {
		delete(x.byContent, c)
	}
}

// push adds one, and returns those that are too many.
func (r *recentReceipts) push(name string, k *receipt) (gone []*receipt) {
	at := r.of[name]
	if at == nil {
		if r.order.Len() == r.names {
			quiet := r.order.Remove(r.order.Back()).(*series)
			delete(r.of, quiet.name)
			gone = quiet.all
		}
		at = r.order.PushFront(&series{name: name})
		r.of[name] = at
	}
	r.order.MoveToFront(at)
	s := at.Value.(*series)
	s.all = append(s.all, k)
	r.count += 1 - len(gone)
	switch {
	case r.most > 0 && len(s.all) > 2*r.most:
		gone = append(gone, r.cut(s, r.most)...)
	case r.room > 0 && r.count > r.room:
		for e := r.order.Front(); e != nil; e = e.Next() {
			if other := e.Value.(*series); len(other.all) > len(s.all) {
				s = other
			}
		}
		gone = append(gone, r.cut(s, (len(s.all)+1)/2)...)
	}
	return gone
}

// cut takes the oldest of a series.
func (r *recentReceipts) cut(s *series, oldest int) (gone []*receipt) {
	gone, s.all = s.all[:oldest], slices.Clone(s.all[oldest:])
	r.count -= oldest
	return gone
}
