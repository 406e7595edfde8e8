package retry

import (
	"container/list"
	"slices"

	"github.com/redrive-mq/redrive/internal/store"
)

// receiptIndex holds the receipts that a dead letter may match, in bounded memory: of each
// process the newest that the store keeps, and of all queues together those of the newest ids
// that were issued over this connection.
type receiptIndex struct {
	byContent         map[content][]*receipt
	processes, queues recentReceipts
}

// recentReceipts holds the newest receipts, by name of a process or queue. Of more than maxNames
// names it forgets the one that got none for longest. Either each name has a limit, perName; or
// perName is 0 and all names together have one, total: then the name with the most receipts
// loses its oldest.
type recentReceipts struct {
	byName         map[string]*list.Element // of recent, each a *series
	recent         *list.List               // the name that got a receipt last is first
	maxNames       int
	perName, total int // limits; one of them is 0
	count          int // of all names
}

// series are the newest receipts of one name, oldest first: up to twice its limit, so that
// the oldest are removed many at a time.
type series struct {
	name string
	all  []*receipt
}

func newRecentReceipts(maxNames, perName, total int) recentReceipts {
	return recentReceipts{byName: map[string]*list.Element{}, recent: list.New(), maxNames: maxNames, perName: perName, total: total}
}

// maxIssued bounds the receipts of ids that were issued over this connection, of all queues
// together. RabbitMQ's at-least-once worker publishes again what was not confirmed, also long
// after: meanwhile it continues with its other 31 slots, thousands of messages in 12 s.
// [measured on 4.3.6, a node of the cluster killed]
const maxIssued = 32_768

func newReceiptIndex() receiptIndex {
	return receiptIndex{
		byContent: map[content][]*receipt{},
		processes: newRecentReceipts(4*store.ReceiptsOwners, store.ReceiptsKept, 0),
		queues:    newRecentReceipts(512, 0, maxIssued),
	}
}

// add adds a receipt that is not known yet, and forgets those that exceed a limit then.
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

// push adds a receipt, and returns those that exceed a limit then.
func (r *recentReceipts) push(name string, k *receipt) (excess []*receipt) {
	element := r.byName[name]
	if element == nil {
		if r.recent.Len() == r.maxNames {
			oldest := r.recent.Remove(r.recent.Back()).(*series)
			delete(r.byName, oldest.name)
			excess = oldest.all
		}
		element = r.recent.PushFront(&series{name: name})
		r.byName[name] = element
	}
	r.recent.MoveToFront(element)
	s := element.Value.(*series)
	s.all = append(s.all, k)
	r.count += 1 - len(excess)
	switch {
	case r.perName > 0 && len(s.all) > 2*r.perName:
		excess = append(excess, r.cut(s, r.perName)...)
	case r.total > 0 && r.count > r.total:
		for e := r.recent.Front(); e != nil; e = e.Next() {
			if other := e.Value.(*series); len(other.all) > len(s.all) {
				s = other
			}
		}
		excess = append(excess, r.cut(s, (len(s.all)+1)/2)...)
	}
	return excess
}

// cut removes the oldest of a series.
func (r *recentReceipts) cut(s *series, oldest int) (excess []*receipt) {
	excess, s.all = s.all[:oldest], slices.Clone(s.all[oldest:])
	r.count -= oldest
	return excess
}
