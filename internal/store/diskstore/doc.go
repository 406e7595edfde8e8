// Package diskstore keeps messages in a folder, in an embedded Pebble database.
// One process owns a folder. Read it in this order:
//
//	keys.go         every key, and what is stored under it
//	diskstore.go    Options, Open, Close; how a write batch is committed
//	writebatch.go   the writes of one synced commit; counters are added in the same commit
//	add.go          Add
//	lanes.go        what is in memory of each queue (counts.go: read at the start)
//	claim.go        due records, claimed for the scheduler, and finished
//	change.go       people's actions, and the side table (entries.go) in the same commit
//	receipts.go     ids of the newest batches, by which redelivered messages are recognized
//	scan.go         searches, over many stretches of keys in one order (merge.go)
//	ledger.go       the account of every message (groups.go, tally.go, groupcache.go: error groups)
//	history.go      what ended, in files beside the database (pastfailures.go, past.go)
//	forget.go       queues, and discarded messages, whose time is over
//
// When the disk fails: diskspace.go keeps a reserve free; witness.go knows how many commits
// were synced, so that a store which lacks some is refused; iterate.go, blocks.go and
// skipblock.go read past damaged blocks; damage.go and lost.go report and remember them, and
// rebuild.go counts again; salvage.go (rawread.go, footer.go, blobs.go) saves what can be read
// to a new store.
//
// Around it: pebble.go (how Pebble is set up), pebblefs.go (the files that Pebble writes, reads and removes),
// snapshot.go, format.go, rights.go.
package diskstore
