package redisstore

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

//go:embed lua/*.lua
var sources embed.FS

type script struct{ text, sha string }

// What scripts do when Redis is full: those that free memory, or help to, must still
// work.
const (
	stopsWhenFull = "#!lua\n"
	worksWhenFull = "#!lua flags=allow-oom\n"
	onlyReads     = "#!lua flags=no-writes,allow-oom\n"
)

func moves(name, flags string) *script { return load(flags, "store", "records", name) }

func plain(name, flags string) *script { return load(flags, "store", name) }

func load(flags string, names ...string) *script {
	text := flags
	for _, name := range names {
		source, err := sources.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // it is embedded
		}
		text += string(source)
	}
	sum := sha1.Sum([]byte(text))
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

var (
	scriptAdd      = moves("add", stopsWhenFull)
	scriptAdded    = plain("added", worksWhenFull)
	scriptRemember = moves("remember", stopsWhenFull)
	scriptReceipts = plain("receipts", onlyReads)
	scriptClaim    = plain("claim", worksWhenFull)
	scriptFinish   = moves("finish", worksWhenFull)
	scriptRelease  = plain("release", worksWhenFull)
	scriptRenew    = plain("renew", worksWhenFull)
	scriptNext     = plain("next", worksWhenFull)
	scriptCounts   = plain("counts", worksWhenFull)
	scriptLock     = plain("lock", worksWhenFull)
	scriptUnlock   = plain("unlock", worksWhenFull)
	scriptApply    = moves("apply", worksWhenFull)
	scriptForbid   = plain("forbid", worksWhenFull)
	scriptWrite    = moves("write", worksWhenFull)
	scriptEntries  = plain("entries", onlyReads)
	scriptForget   = plain("forget", worksWhenFull)
	scriptFind     = plain("find", onlyReads)
	scriptScan     = plain("scan", onlyReads)
	scriptCountDue = plain("countdue", onlyReads)
	scriptLedger   = plain("ledger", onlyReads)
	scriptAddSums  = plain("addsums", worksWhenFull)
	scriptPast     = plain("past", onlyReads)
	scriptGroups   = plain("groups", onlyReads)
	scriptUngroup  = plain("ungroup", worksWhenFull)
	scriptUnqueue  = plain("unqueue", worksWhenFull)
	scriptNames    = plain("names", onlyReads)
	scriptLinesOf  = plain("linesof", onlyReads)
	scriptBeat     = plain("beat", worksWhenFull)
	scriptLeave    = plain("leave", worksWhenFull)
	scriptLead     = plain("lead", worksWhenFull)
	scriptResign   = plain("resign", worksWhenFull)
	scriptMemory   = plain("memory", onlyReads)
	scriptIdentity = plain("identity", worksWhenFull)
)

// do runs a script. After an error it may still have run: the answer may be lost.
func (s *Store) do(ctx context.Context, sc *script, args ...string) (rueidis.RedisMessage, error) {
	return s.run(ctx, sc, nil, false, args)
}

// call is do for methods that run one script: it keeps the store open meanwhile.
func (s *Store) call(ctx context.Context, sc *script, args ...string) (m rueidis.RedisMessage, err error) {
	done, err := s.use(ctx)
	if err != nil {
		return m, err
	}
	defer done()
	return s.do(ctx, sc, args...)
}

// write runs a script that changes the store, and returns when the change is as durable as
// promised.
func (s *Store) write(ctx context.Context, sc *script, args ...string) (rueidis.RedisMessage, error) {
	began := time.Now()
	m, err := s.run(ctx, sc, s.confirm, true, args)
	if err == nil {
		s.identity.wrote.Store(true)
		s.OnSync(time.Since(began))
	}
	return m, err
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(20 * time.Millisecond):
		return nil
	}
}

func (s *Store) run(
	ctx context.Context, sc *script, confirm confirm, same bool, args []string,
) (rueidis.RedisMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	for whole := false; ; {
		m, err := s.once(ctx, sc, whole, confirm, same, args)
		said, ok := rueidis.IsRedisErr(err)
		switch {
		case err == nil:
			return m, nil
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			// The deadline of another call: rueidis makes one connection for both, within the
			// time of the first. Nothing was sent.
		case !ok:
			return m, s.wrapError(err)
		case said.IsNoScript() && !whole:
			whole = true
		case strings.HasPrefix(said.Error(), "OOM "):
			return m, fmt.Errorf("redis: %w: %w", store.ErrFull, err)
		case notYet(said):
			if pause(ctx) != nil {
				return m, s.wrapError(err)
			}
		default:
			return m, s.wrapError(err)
		}
	}
}

// notYet reports whether nothing was done and another try may soon work: the slot is moving
// to another node, or has another owner.
func notYet(err *rueidis.RedisError) bool {
	_, moved := err.IsMoved()
	_, asked := err.IsAsk()
	return moved || asked || err.IsTryAgain() || err.IsClusterDown() || err.IsLoading() ||
		strings.HasPrefix(err.Error(), "READONLY ")
}

// once sends a script, whole or by its hash; if same, with a command that returns which store
// it ran in; and with confirm's command, if any.
func (s *Store) once(
	ctx context.Context, sc *script, whole bool, confirm confirm, same bool, args []string,
) (rueidis.RedisMessage, error) {
	client := s.client()
	run := client.B().Evalsha().Sha1(sc.sha).Numkeys(2).Key(s.key("seq"), s.key("none")).Arg(args...).Build()
	if whole {
		run = client.B().Eval().Script(sc.text).Numkeys(2).Key(s.key("seq"), s.key("none")).Arg(args...).Build()
	}
	all := append(make([]rueidis.Completed, 0, 3), run)
	if same {
		all = append(all, client.B().Hget().Key(s.key("identity")).Field("id").Build())
	}
	var answers []rueidis.RedisResult
	if confirm == nil {
		answers = client.DoMulti(ctx, all...)
	} else {
		// On one connection, since Redis confirms the writes of the connection that asks; and a dedicated one, since
		// rueidis would follow a redirection with the first command alone.
		c, free := client.Dedicate()
		defer free()
		until, _ := ctx.Deadline()
		left := time.Until(until)
		answers = c.DoMulti(ctx, append(all, confirm(client.B(), max(left/2, left*4/5-waitTick)))...)
	}
	m, err := answers[0].ToMessage()
	if err == nil && same {
		id, asked := answers[1].ToString()
		if asked != nil && !rueidis.IsRedisNil(asked) {
			return m, fmt.Errorf("which store it was done in is not known: %v", asked) // %v: no retry
		}
		err = s.checkIdentity(id)
	}
	if err == nil && confirm != nil {
		err = s.confirmed(answers[len(answers)-1])
	}
	return m, err
}

// waitTick is how much later than asked Redis may end a wait.
const waitTick = 150 * time.Millisecond

// confirm builds the command that waits until a connection's writes are durable; nil when
// none is needed.
type confirm func(b rueidis.Builder, within time.Duration) rueidis.Completed

var errUnconfirmed = errors.New("it did not confirm in time that what was written is safe")

func (s *Store) confirmed(answer rueidis.RedisResult) error {
	var local, replicas int64
	m, err := answer.ToMessage()
	if err != nil {
		return err
	}
	if m.IsArray() {
		n, err := m.AsIntSlice()
		if err != nil || len(n) != 2 {
			return fmt.Errorf("WAITAOF answered %v: %w", n, errors.Join(errUnconfirmed, err))
		}
		local, replicas = n[0], n[1]
	} else if replicas, err = m.AsInt64(); err != nil {
		return err
	}
	switch {
	case s.Durability == Synced && local < 1:
		return fmt.Errorf("%w on its disk", errUnconfirmed)
	case s.Durability == Replicated && replicas < int64(s.Replicas):
		return fmt.Errorf("%w: %d of %d replicas have it", errUnconfirmed, replicas, s.Replicas)
	}
	return nil
}

func texts(m rueidis.RedisMessage, err error) ([]string, error) {
	if err != nil {
		return nil, err
	}
	list, err := m.ToArray()
	if err != nil {
		return nil, err
	}
	all := make([]string, len(list))
	for i := range list {
		if n, err := list[i].ToInt64(); err == nil {
			all[i] = itoa(n)
		} else {
			all[i], _ = list[i].ToString()
		}
	}
	return all, nil
}

// maxPerScript is how many records a script handles at once, unless it must be one step: Redis
// does nothing else meanwhile.
const maxPerScript = 256

func itoa[N int | int64 | uint64](n N) string { return strconv.FormatInt(int64(n), 10) }
